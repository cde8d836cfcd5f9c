// Sums gradients exactly over micro-batches and ranks while backward goes on,
// and commits the step.  ZeRO stage 0.
//
//   reducer.ComparePlans()                          once, before step 0
//   each step:
//     reducer.BeginStep(UnitExponents(...), my micro-batches)
//     for each of my micro-batches:
//       decoder.Forward(...)
//       loss = decoder.Backward(reducer)            buckets start in the last
//       reducer.EndMicroBatch(loss)
//     result = reducer.Commit(votes)
//     optimizer.Apply(result, ...); units advance
//
// Every contribution is rounded to the tensor's unit and added to a 64-bit
// accumulator (kernels/exact_sum.h), so that the sums, and everything made from
// them, are the same bits for every split of the micro-batches over ranks,
// every bucket size, with and without overlap.
//
// In this rank's last backward of the step, when a unit is done, its buckets'
// all-reduces are posted to the communication thread and run while backward
// goes on.  A rank without micro-batches posts all of them at once, with zeros.
// The order of collectives is that of the ReductionPlan, always.
//
// Before a unit's buckets a small all-reduce adds up the ranks' largest
// elements of each: where that is below 2^31, the bucket's sums fit 32 bits,
// and it travels at that width (narrow_sum.h).  Never sent first and repaired
// after: a rank may die between.
//
// The commit is two small all-reduces.  Of maxima: overflow and losses that are
// not finite, votes, each tensor's largest element.  Of sums: loss, tokens, the
// squares of each tensor; each rank measures only its shard of every bucket.
// When the second ends, all ranks hold the same reduced gradient and result.
#ifndef WORKER_PARALLEL_GRADIENT_REDUCER_H_
#define WORKER_PARALLEL_GRADIENT_REDUCER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "common/layout.h"
#include "kernels/device.h"
#include "worker/comm/comm_thread.h"
#include "worker/model/decoder.h"
#include "worker/parallel/exact_loss.h"
#include "worker/parallel/exact_unit.h"
#include "worker/parallel/reduction_plan.h"

namespace lockstep {

struct ReducerOptions {
  // Of float32 gradients: a bucket has bucket_bytes / 4 elements.  At least 64.
  int64_t bucket_bytes = 25 << 20;

  // false: reductions start only once backward has ended, for comparison.
  bool overlap = true;

  ExactScale scale;

  // Must be the same on all ranks; see ComparePlans.
  InputDigests inputs;
};

// What a rank wants of the step it commits.
struct Votes {
  bool stop = false;         // End after this step.
  bool checkpoint = false;   // Save after this step.
  int64_t plan_version = 0;  // The newest this rank has.
};

// What became of one tensor's gradient.
struct TensorResult {
  int exponent = 0;     // The sum's unit is 2^exponent.
  int64_t max_sum = 0;  // Largest |integer| of the reduced sum; 2^63 - 1 when
                        // that is not known, for an overflow.
  double norm = 0;      // Of the mean gradient: sum / tokens.
};

// The same on every rank, bit for bit.
struct StepResult {
  ExactLoss loss;  // Sum over the step.  loss.mean() is the step's loss.

  // A contribution was not finite or too large for its unit: the sums are
  // incomplete.  A loss was not finite.
  bool gradient_overflow = false;
  int overflow_tensor = -1;  // The first such in Layout::tensors.
  bool loss_not_finite = false;

  // No target of the step counts: the loss is NaN, all sums are zero.
  bool nothing_counts = false;

  // Whether the step is to change no parameter.
  bool skipped() const {
    return gradient_overflow || loss_not_finite || nothing_counts;
  }

  std::vector<TensorResult> tensors;  // As in Layout::tensors.

  // Norm of the whole mean gradient, before clipping.  When skipped, of what
  // was summed, and without meaning.
  double gradient_norm = 0;

  bool stop = false;         // A rank voted for it.
  bool checkpoint = false;   // Likewise.
  int64_t plan_version = 0;  // The least that any rank has.
};

// One bucket's reduction; times from the start of the step.
struct BucketTrace {
  int unit = 0;  // Index into Layout::units.
  FlatRange range;
  absl::Duration start;
  absl::Duration end;
  bool wide = false;  // It took 64 bits an element; else 32.
};

// Where the time of a step went, on this rank.
struct StepTrace {
  std::vector<BucketTrace> buckets;  // In the order of reduction.

  // When the last backward ended; zero without micro-batches.
  absl::Duration backward_end;

  // How long the caller of Commit waited for other ranks and the wire.
  absl::Duration exposed;

  // How long a collective was under way, exposed or not.
  absl::Duration communication;

  // Payload handed to other ranks.
  int64_t sent_bytes = 0;
};

// Belongs to the thread that trains.
class GradientReducer final : public GradientSink {
 public:
  // All memory is allocated here.  `stream`, `comm` and `clock` must outlive
  // this; no one else may have tasks under way on `comm` during a step.
  //
  // Errors:
  //   InvalidArgument: an option is out of range.
  //   ResourceExhausted: not enough device memory.
  static absl::StatusOr<std::unique_ptr<GradientReducer>> Create(
      const Layout& layout, const ReducerOptions& options,
      kernels::Stream& stream, CommThread& comm, Clock& clock);

  // Waits for what is under way; abort `comm` first if it may not end.
  ~GradientReducer() override;

  const ReductionPlan& plan() const { return plan_; }

  // SHA-256, in hexadecimal, of layout, buckets, numeric class, protocol
  // version and spec.
  const std::string& plan_hash() const { return digest_.whole; }

  // A collective, before the first step: whether all ranks have the same plan.
  //
  // Errors:
  //   FailedPrecondition: a rank differs from rank 0; says which, and in what.
  //   Otherwise: the communicator's.
  absl::Status ComparePlans();

  // Begins a step of which this rank runs `micro_batch_count` micro-batches (0
  // is fine).  The last step's sums are lost.  exponents: of each tensor.
  absl::Status BeginStep(absl::Span<const int> exponents,
                         int64_t micro_batch_count);

  // GradientSink.  UnitDone returns the communicator's error as soon as there
  // is one.
  absl::Status Contribute(int tensor, const float* gradient) override;
  absl::Status UnitDone(int unit) override;

  // After the backward of each micro-batch.
  absl::Status EndMicroBatch(const LossSum& loss);

  // Waits for the reductions and commits.  On an error the step is not
  // committed and nothing has changed.
  //
  // Errors:
  //   FailedPrecondition: no token of the whole step counts (on all ranks).
  //   Internal: ranks did not run the step's micro-batches exactly once
  //     (likewise), or calls came out of order.
  //   Otherwise: the communicator's or the device's.
  absl::StatusOr<StepResult> Commit(const Votes& votes);

  // The reduced sums of the last committed step: (layout.element_count) device
  // memory, valid until the next BeginStep.
  const int64_t* sums();

  // Of the last committed step.
  const StepTrace& trace() const { return trace_; }

 private:
  GradientReducer(const Layout& layout, const ReducerOptions& options,
                  kernels::Stream& stream, CommThread& comm, Clock& clock);
  absl::Status Allocate();

  // Posts the reductions of unit `unit`, whose sums are complete at
  // unit_events_[unit].
  void PostUnit(int unit);
  absl::Status PostAllUnits();
  absl::Status ReduceMaxima(const Votes& votes, StepResult& result);
  absl::Status ReduceSums(StepResult& result);

  // Posts and waits; counts as exposed communication.
  absl::Status RunExposed(CommThread::Task task);
  absl::Duration SinceStart() { return clock_.Now() - step_start_; }

  const Layout layout_;
  const ReducerOptions options_;
  kernels::Stream& stream_;
  CommThread& comm_;
  Clock& clock_;
  const ReductionPlan plan_;
  const PlanDigest digest_;
  const std::vector<TensorPiece> pieces_;  // What this rank measures.
  const int64_t overflow_limit_;

  std::unique_ptr<kernels::Buffer> sums_;      // (element_count) int64
  std::unique_ptr<kernels::Buffer> maxima_;    // (tensors) int64
  std::unique_ptr<kernels::Buffer> squares_;   // (tensors, limbs) int64
  std::unique_ptr<kernels::Buffer> overflow_;  // (tensors) int32
  std::vector<std::unique_ptr<kernels::Event>> unit_events_;

  // The step under way.
  std::vector<int> exponents_;
  int64_t micro_batch_count_ = 0;
  int64_t ended_count_ = 0;  // Micro-batches; 0 <= ended <= count.
  int next_unit_ = -1;       // That backward finishes; -1: all done.
  bool in_step_ = false;
  ExactLoss loss_;
  Instant step_start_;
  int64_t sent_before_ = 0;

  // While reductions run, `buckets` and `communication` belong to the
  // communication thread.
  StepTrace trace_;
};

}  // namespace lockstep

#endif  // WORKER_PARALLEL_GRADIENT_REDUCER_H_
