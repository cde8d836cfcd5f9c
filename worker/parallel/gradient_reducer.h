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
// At ZeRO stages 0 and 1, in this rank's last backward of the step, when a unit
// is done, its buckets' reductions are posted to the communication thread and
// run while backward goes on.  A rank without micro-batches posts all of them
// at once, with zeros.
//
// At stages 2 and 3 a rank has no accumulator of its own for what others own:
// contributions are added in one of a few slots, every unit is reduced in every
// round, and what a rank owns of it is added to its accumulator.  A rank
// without a micro-batch in a round passes through it all the same:
//
//     for rounds after my last micro-batch:
//       for each unit, from the last:  reducer.UnitDone(unit)
//       reducer.EndMicroBatch({})
//
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

#include <array>
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

  // false: at stages 0 and 1 reductions start only once backward has ended, at
  // the others backward waits for each; for comparison.
  bool overlap = true;

  int zero_stage = 0;  // 0 to 3; 3 is no different from 2 here.

  // The most micro-batches that a rank runs in a step.
  int64_t round_count = 1;

  ExactScale scale;

  // Must be the same on all ranks; see ComparePlans.
  InputDigests inputs;
};

// What a rank wants of the step it commits.
struct Votes {
  bool stop = false;        // End after this step.
  bool checkpoint = false;  // Save after this step.
  // Of this rank's parts of checkpoints: the steps in the newest that it has
  // written, and in the newest that it could not write.
  int64_t written_step_count = 0;
  int64_t failed_step_count = 0;
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

  bool stop = false;               // A rank voted for it.
  bool checkpoint = false;         // Likewise.
  int64_t written_step_count = 0;  // The least of any rank.
  int64_t failed_step_count = 0;   // The largest.
  int64_t plan_version = 0;        // The least that any rank has.
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

  // Payload handed to other ranks, of reductions and commit.
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

  // SHA-256, in hexadecimal, of all parts of PlanDigest.
  const std::string& plan_hash() const { return digest_.whole; }

  // A collective, before the first step: how the plans of the ranks differ, the
  // same on all of them; none if they do not.
  //
  // Errors: the communicator's.
  absl::StatusOr<std::optional<PlanDifference>> ComparePlans();

  // Begins a step of which this rank runs `micro_batch_count` micro-batches (0
  // is fine; at most round_count).  The last step's sums are lost.  exponents:
  // of each tensor.
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

  // Rounds after this rank's last micro-batch, in which it must take part.
  int64_t idle_round_count() const {
    return ShardsGradients(options_.zero_stage)
               ? options_.round_count - micro_batch_count_
               : 0;
  }

  // The reduced sums of the last committed step: device memory, valid until the
  // next BeginStep.  Complete at stage 0; else where this rank owns.
  StateArray<const int64_t> sums();

  // What this rank owns.
  const OwnedShards& owned() const { return owned_; }

  // Of the last committed step.
  const StepTrace& trace() const { return trace_; }

  // How long contributions of the step under way have waited for other ranks.
  absl::Duration waited() const { return waited_; }

 private:
  GradientReducer(const Layout& layout, const ReducerOptions& options,
                  kernels::Stream& stream, CommThread& comm, Clock& clock);
  absl::Status Allocate();

  int64_t round_count() const {
    return micro_batch_count_ + idle_round_count();
  }

  // Where contributions to a tensor are added.  At stages 2 and 3 this waits
  // until its unit's slot is free.
  absl::StatusOr<int64_t*> AccumulatorOf(int unit);

  // Posts the reductions of unit `unit`, whose sums from `sums` on are complete
  // at unit_events_[unit].
  int64_t PostUnit(int unit, int64_t* sums);
  absl::Status PostAllUnits();
  absl::Status ReduceUnit(Communicator& communicator, int unit, int64_t* sums);
  // sums: the bucket's.
  absl::Status ReduceBucket(Communicator& communicator, int bucket, bool wide,
                            int64_t* sums);
  absl::Status ReduceMaxima(const Votes& votes, StepResult& result);
  absl::Status ReduceSums(StepResult& result);

  // Posts and waits; counts as exposed communication.
  absl::Status RunExposed(const CommThread::Task& task);
  absl::Duration SinceStart() { return clock_.Now() - step_start_; }

  const Layout layout_;
  const ReducerOptions options_;
  kernels::Stream& stream_;
  CommThread& comm_;
  Clock& clock_;
  const ReductionPlan plan_;
  const PlanDigest digest_;
  const OwnedShards owned_;
  const int64_t overflow_limit_;

  // int64, over the flat space or what is owned.
  std::unique_ptr<kernels::Buffer> sums_;
  // At stages 2 and 3, see SlotOfUnit; int64.
  struct Slot {
    std::unique_ptr<kernels::Buffer> memory;
    int unit = -1;          // That is being summed in it.
    int64_t reduction = 0;  // The number of the last task that used it.
  };
  std::array<Slot, kUnitSlotCount> slots_;
  std::unique_ptr<kernels::Buffer> maxima_;    // (tensors) int64
  std::unique_ptr<kernels::Buffer> squares_;   // (tensors, limbs) int64
  std::unique_ptr<kernels::Buffer> overflow_;  // (tensors) int32
  std::vector<std::unique_ptr<kernels::Event>> unit_events_;

  // The step under way.
  std::vector<int> exponents_;
  int64_t micro_batch_count_ = 0;
  int64_t ended_count_ = 0;  // Rounds; 0 <= ended <= round_count().
  int next_unit_ = -1;       // That backward finishes; -1: all done.
  bool in_step_ = false;
  ExactLoss loss_;
  Instant step_start_;
  int64_t last_reduction_ = 0;  // The number of its task.
  absl::Duration waited_;       // For slots.
  absl::Duration backward_end_;

  // While reductions run, this belongs to the communication thread.
  StepTrace trace_;
};

}  // namespace lockstep

#endif  // WORKER_PARALLEL_GRADIENT_REDUCER_H_
