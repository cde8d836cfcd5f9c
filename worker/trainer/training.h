// The training state of one rank, and the steps that advance it.
#ifndef WORKER_TRAINER_TRAINING_H_
#define WORKER_TRAINER_TRAINING_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/micro_batches.h"
#include "kernels/device.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/comm/comm_thread.h"
#include "worker/data/micro_batch_reader.h"
#include "worker/model/decoder.h"
#include "worker/parallel/gradient_reducer.h"
#include "worker/parallel/optimizer.h"
#include "worker/parallel/parameter_store.h"
#include "worker/trainer/job.h"
#include "worker/trainer/loss_watch.h"

namespace lockstep {

// What a committed step was like, at this rank.
struct StepOutcome {
  int64_t step = 0;
  StepResult result;        // The same on all ranks.
  std::string skip_reason;  // For people; empty when it was not skipped.
  bool loss_spike = false;  // See LossWatch.
  double learning_rate = 0;
  int64_t micro_batch_count = 0;  // That this rank ran.
  absl::Duration duration;
  absl::Duration data_wait;
  absl::Duration forward;
  absl::Duration backward;
  absl::Duration update;
  absl::Duration checkpoint_stall;  // Part of `update`; for the caller.
  StepTrace trace;
};

// What an evaluation gave, the same on all ranks.
struct EvaluationOutcome {
  ExactLoss loss;
  absl::Duration duration;  // At this rank.
};

// Made in two phases: memory is taken and the state is loaded before the other
// ranks are there, then it is joined to them.  Belongs to one thread, but for
// Abort.
class Training {
 public:
  // For rank `rank` of `world`, to go on from a checkpoint of this job, or from
  // the job's start if that is null.  `job`, `device` and `clock` must outlive
  // this.  `on_progress` is called as often as something is done, by the thread
  // that does it: a unit loaded, a gradient of a tensor, a batch of an
  // evaluation.
  //
  // Errors: not enough memory; the job's, where its model cannot be read, and
  // Restore's.
  static absl::StatusOr<std::unique_ptr<Training>> Create(
      const OpenedJob& job, int rank, int world, kernels::Device& device,
      Clock& clock, const Checkpoint* from,
      std::function<void()> on_progress = [] {});

  // Takes the state from another checkpoint of this job.  Before Join.
  //
  // Errors: the job's, where the checkpoint is of another model or of other
  // data; else as the disk says.
  absl::Status Restore(const Checkpoint& checkpoint);

  // Joins the ranks of `communicator`; rank i runs ranges[i] of every step,
  // from `first_step` on, and errors call it by workers[i].  Once.
  //
  // Errors:
  //   FailedPrecondition (the job's): ranks differ in plan, data or weights;
  //     names which and in what.
  //   Otherwise: a peer's, or not enough memory.
  absl::Status Join(std::unique_ptr<Communicator> communicator,
                    const std::vector<WorkerId>& workers,
                    const std::vector<MicroBatchRange>& ranges,
                    int64_t first_step);

  // The next step; `votes` but for the plan's version.
  //
  // Errors, each of which ends the training on all ranks: the job's (a token
  // outside the vocabulary, steps that never become finite), a peer's, or this
  // worker's.  The step is not committed.
  absl::StatusOr<StepOutcome> Step(const Votes& votes = {});

  // The mean loss over the held-out part, this rank doing its share.  Errors as
  // Step's.
  absl::StatusOr<EvaluationOutcome> Evaluate();

  // Returns once every rank has called it.
  absl::Status Barrier();

  // A collective: makes `count` words the largest of all ranks'.
  absl::Status MaxOverRanks(int64_t* words, int64_t count);

  // What this rank owns, whatever it holds.
  const OwnedShards& owned() const { return owned_; }

  // Copies the values of all kinds of what this rank owns to host memory of
  // (owned().element_count) each.
  absl::Status CopyState(const std::array<float*, kStateKindCount>& to);

  // The rest of the state, for a checkpoint of this job's generation; the
  // ledger is the caller's.
  CheckpointInfo DescribeState(const GenerationKey& key) const;

  // Whether ReadWeights needs all ranks.
  bool weights_are_sharded() const;

  // Calls `use` for every unit, in forward order, with its weights:
  // (unit.range.element_count) host memory, until it returns.  If they are
  // sharded every rank must call this.
  //
  // Errors: those of `use`, or a peer's.
  absl::Status ReadWeights(
      const std::function<absl::Status(int unit, const float* values)>& use);

  // The rank whose connection failed first, if one did.
  std::optional<int> failed_peer() const {
    return comm_ == nullptr ? std::nullopt : comm_->failed_peer();
  }

  // Makes whatever runs, now or later, end with `why`, within the time of one
  // tensor's gradient or one forward pass.  Thread-safe.
  void Abort(absl::Status why);

 private:
  class ComputeStopwatch;
  class Sink;

  Training(const OpenedJob& job, int rank, int world, kernels::Device& device,
           Clock& clock, std::function<void()> on_progress)
      : job_(job),
        rank_(rank),
        world_(world),
        device_(device),
        clock_(clock),
        on_progress_(std::move(on_progress)),
        owned_(ShardsOf(job.layout(), PlanOf(job), rank, world)) {}
  static ReductionPlan PlanOf(const OpenedJob& job);
  // Where the optimizer has its moments.
  StateArray<float> Moments(float* values) const {
    return {.data = values, .is_owned = ShardsOptimizer(zero_stage())};
  }
  absl::Status Allocate();
  absl::Status LoadStart();
  // Moments, updates and units.
  absl::Status RestoreOptimizer(const Checkpoint& checkpoint);
  absl::StatusOr<StepOutcome> TakeStep(const Votes& votes);
  absl::StatusOr<ExactLoss> SumHeldOutLoss();
  // Takes part in the rounds in which this rank has no micro-batch.
  absl::Status RunIdleRounds();
  absl::Status RunMicroBatch(StepOutcome& outcome);
  std::string SkipReason(const StepResult& result) const;
  // A collective, once plans were found to differ, so that all ranks come here
  // or none does.  FailedPrecondition, with all there is to say.
  absl::Status Describe(const PlanDifference& difference,
                        const std::vector<WorkerId>& workers);
  // A collective: the first file of the data that is not the same on all ranks
  // as on rank 0, and a rank where it is not; none if that is not to be found
  // out.
  struct FileDifference {
    std::string path;
    int rank = 0;
  };
  std::optional<FileDifference> FindFileThatDiffers();
  // Blames a collective's error on the peer.
  static absl::Status Blame(absl::Status status);
  absl::Status aborted() const;

  int zero_stage() const { return job_.spec().parallel().zero_stage(); }

  const OpenedJob& job_;
  const int rank_;
  const int world_;
  kernels::Device& device_;
  Clock& clock_;
  const std::function<void()> on_progress_;
  int64_t next_step_ = 0;
  int skipped_in_a_row_ = 0;
  LossWatch loss_watch_;

  std::unique_ptr<kernels::Stream> stream_;
  std::string weights_digest_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<UnitHistory> unit_histories_;
  const OwnedShards owned_;

  // Once joined.  `comm_` and `reader_` are also used by Abort.
  MicroBatchRange range_;
  mutable Mutex mutex_;
  absl::Status abort_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> is_aborted_{false};
  std::unique_ptr<CommThread> comm_;
  std::unique_ptr<MicroBatchReader> reader_;
  // After `comm_`, which they wait for at their end.
  std::unique_ptr<ParameterStore> parameters_;
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<GradientReducer> reducer_;
  int64_t gathered_before_ = 0;  // What gathers had sent at the last commit.
};

}  // namespace lockstep

#endif  // WORKER_TRAINER_TRAINING_H_
