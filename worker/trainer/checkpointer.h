// Saves checkpoints of a job while it trains: this rank's part of each, and at
// rank 0 also when, and the commit.
//
//   rank 0 votes for a checkpoint -> in the commit of that step all ranks learn
//   of it, and copy what they own (Save); the step loop goes on
//     -> each writes its part, behind the step loop, and votes how far it is
//     -> once a commit says that every part is written, rank 0 gives the
//        checkpoint its name; once it says that one could not be written, rank
//        0 throws the others away
//
// So the ranks agree among themselves, and a checkpoint needs no coordinator.
// One that was fenced off and trains on saves the same bits under the same
// names.  Only one checkpoint is under way at a time; while one is, no other is
// due.  The last step's waits for it, see Settle.
#ifndef WORKER_TRAINER_CHECKPOINTER_H_
#define WORKER_TRAINER_CHECKPOINTER_H_

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/layout.h"
#include "common/mutex.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/parallel/gradient_reducer.h"
#include "worker/parallel/reduction_plan.h"

namespace lockstep {

// Belongs to the thread that trains.
class Checkpointer {
 public:
  struct Options {
    std::string checkpoints_folder;  // Made when it is needed.
    std::string staging_folder;      // Of the generation alone; is there.
    int rank = 0;
    int world = 1;
    // At least one of these, by which rank 0 decides.
    int64_t every_steps = 0;  // 0: not by steps.
    absl::Duration every;     // Zero: not by time.
    int keep = 2;
    int64_t max_steps = 0;            // After which there is one in any case.
    int64_t complete_step_count = 0;  // What training goes on from.
  };

  // Takes the memory of the copy, and starts the thread that writes.
  //
  // Errors: ResourceExhausted: not enough memory.
  static absl::StatusOr<std::unique_ptr<Checkpointer>> Create(
      const Layout& layout, OwnedShards owned, const Options& options,
      Clock& clock);

  // Ends what is under way.
  ~Checkpointer();

  // Of the step after which there will be `step_count` committed ones.
  void AddVotes(int64_t step_count, Votes& votes);

  // Of every committed step, before Save.
  void OnCommit(const StepResult& result);

  // A collective of all ranks; before Snapshot, and at the end: returns once
  // nothing is under way at any of them.  `max_over_ranks` makes `count` words
  // the largest of all ranks'.  `on_progress` is called about once a second,
  // unless it is this rank that is awaited and its disk stands still; an error
  // from it ends the wait.
  //
  // Errors: those of the two.
  absl::Status Settle(
      const std::function<absl::Status(int64_t* words, int64_t count)>&
          max_over_ranks,
      const std::function<absl::Status()>& on_progress);

  // Where to copy what this rank owns: (owned.element_count) host memory for
  // each kind of state, free until Save.
  std::array<float*, kStateKindCount> Snapshot();

  // Writes what was copied.
  void Save(CheckpointInfo info);

  // Steps in the newest complete checkpoint, as far as this rank knows.
  int64_t complete_step_count() const;

  // Why this rank could not write its part, or rank 0 not commit; once.
  std::optional<std::string> TakeFailure();

 private:
  Checkpointer(const Layout& layout, OwnedShards owned, const Options& options,
               Clock& clock);

  std::string StagingOf(int64_t step_count) const;
  void Post(std::function<void()> task);
  void RunTasks();
  bool is_busy() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return running_ || !tasks_.empty();
  }

  // Of the thread that writes.
  absl::Status CountProgress();
  void WritePart(const CheckpointInfo& info);
  void Commit(const CheckpointInfo& info);
  absl::Status TryToCommit(const CheckpointInfo& info);
  void RemoveOld(int64_t newest);

  const Layout layout_;
  const OwnedShards owned_;
  const Options options_;
  Clock& clock_;
  std::array<std::vector<float>, kStateKindCount> snapshot_;
  std::optional<CheckpointInfo> pending_;  // Saved, not agreed on yet.
  Instant last_save_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t progress_ ABSL_GUARDED_BY(mutex_) = 0;  // Grows while it goes on.
  int64_t written_ ABSL_GUARDED_BY(mutex_) = 0;   // As in Votes.
  int64_t failed_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t complete_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<std::string> failure_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

// Of what job a checkpoint is: one of the same name, or one whose weights
// become the same: a job that is submitted again goes on.
struct CheckpointOwner {
  std::string job;
  std::string spec_digest;

  bool Owns(const CheckpointInfo& info) const {
    return info.job == job || info.spec_digest == spec_digest;
  }
};

// The newest complete checkpoint of `owner` in `folder`; none if there is none.
// One that is torn is passed over, with `verify` also one that was tampered
// with, and `on_passed_over` told why.  `on_progress`: see Checkpoint::Verify.
//
// Errors:
//   FailedPrecondition: there is one of another job.
//   Otherwise: as the disk says; what on_progress returned.
absl::StatusOr<std::optional<Checkpoint>> FindNewestCheckpoint(
    const std::string& folder, const CheckpointOwner& owner, bool verify,
    const std::function<absl::Status()>& on_progress,
    const std::function<void(const absl::Status&)>& on_passed_over);

}  // namespace lockstep

#endif  // WORKER_TRAINER_CHECKPOINTER_H_
