// One generation of a job at one rank, from Prepare to the committed output, on
// a thread of its own.
//
//   PREPARING -> JOINED -> (Start) -> CONNECTING -> TRAINING -> OUTPUT_READY
//     -> (CommitOutput, rank 0) -> FINISHED          any -> FAILED
//
// Everything that happens is told as the whole state of the generation, and
// every committed step as a report.
#ifndef WORKER_TRAINER_GENERATION_H_
#define WORKER_TRAINER_GENERATION_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/session.h"
#include "kernels/device.h"
#include "lockstep/v1/monitor_service.pb.h"
#include "worker/comm/group_listener.h"
#include "worker/trainer/checkpointer.h"
#include "worker/trainer/job.h"
#include "worker/trainer/output_directory.h"
#include "worker/trainer/training.h"

namespace lockstep {

class Generation {
 public:
  struct Environment {
    kernels::Device* device = nullptr;
    Clock* clock = nullptr;
    WorkerId worker;
    std::string listen_host;  // Where other ranks reach this one.
    Collectives collectives = Collectives::kAuto;
    absl::Duration connect_timeout = absl::Seconds(60);
    // A rank that is awaited in a collective for longer than this is given up.
    absl::Duration collective_timeout = absl::Minutes(5);
    std::string random;  // Hexadecimal digits, never used before.
    // Called on the generation's thread.
    std::function<void(const HeldGeneration&)> on_held;
    std::function<void(const v1::StepMetrics&)> on_step;
    // Often, while it trains and while it writes what it trained.
    std::function<void()> on_progress;
  };

  // Begins at once.
  Generation(Environment environment, Prepare prepare);

  // Aborts, waits for the thread to end, and removes what is unfinished.
  ~Generation();

  const GenerationKey& key() const { return prepare_.key; }

  // A second one, and one of another generation, is ignored.  These return at
  // once; thread-safe.
  void OnStart(Start start);
  void OnCommitOutput();
  void Abort();

 private:
  void Run();
  absl::Status RunToTheEnd();
  absl::Status PrepareAll();
  absl::StatusOr<std::unique_ptr<Communicator>> Connect(const Start& start);
  // Of rank 0: what there is to go on from, and of the others what they will
  // probably be told.
  absl::Status CheckMemory() const;
  absl::Status FindCheckpoint();
  // The state that rank 0 says, unless it is there already.
  absl::Status RestoreAt(int64_t first_step);
  absl::Status MakeCheckpointer(const Start& start);
  std::string CheckpointsFolder() const;

  absl::Status Train(int64_t first_step);
  // After a step.
  absl::Status Save(StepOutcome& step);
  // See Checkpointer::Settle.
  absl::Status SettleCheckpoints();
  // Of rank 0, and of the others as far as it needs them.
  absl::Status WriteWeights();
  absl::Status Finish();
  absl::Status aborted();
  void Report(const StepOutcome& step,
              const std::optional<EvaluationOutcome>& evaluation);
  void LogTrace(const StepOutcome& step) const;

  int world() const { return static_cast<int>(prepare_.workers.size()); }
  void Tell(Phase phase);

  const Environment environment_;
  const Prepare prepare_;

  // Of the thread.
  HeldGeneration held_;
  std::optional<OpenedJob> job_;
  std::unique_ptr<OutputDirectory> output_;    // Rank 0.
  std::unique_ptr<HuggingFaceWriter> writer_;  // Rank 0.
  std::optional<int> failed_peer_;
  LedgerRow own_row_;
  std::optional<Checkpoint> checkpoint_;  // That training_ was restored from.
  std::string passed_over_;  // Why a newer one was not; until it is reported.
  std::unique_ptr<Checkpointer> checkpointer_;  // Null: none are made.

  Mutex mutex_;
  CondVar changed_;
  bool aborted_ ABSL_GUARDED_BY(mutex_) = false;
  bool commit_output_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<Start> start_ ABSL_GUARDED_BY(mutex_);
  // Set once made, by the thread, for Abort.
  std::unique_ptr<Training> training_;
  std::unique_ptr<GroupListener> listener_;
  Training* abortable_training_ ABSL_GUARDED_BY(mutex_) = nullptr;
  GroupListener* abortable_listener_ ABSL_GUARDED_BY(mutex_) = nullptr;

  std::thread thread_;
};

}  // namespace lockstep

#endif  // WORKER_TRAINER_GENERATION_H_
