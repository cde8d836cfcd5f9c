// The core's surroundings: one owner of the state machine, the order of what it
// wants done, and the clock that makes time pass for it.
//
//   gRPC threads --event--> [lock: core decides] --effects--> outbox
//                                                               |
//   timer thread --Tick-----^          outbox thread: takes all that is queued,
//                                      stores it in one transaction, and only
//                                      then sends, publishes and answers, in
//                                      the order in which it was decided
//
// So nobody is told what a crash could take back, and a slow disk makes larger
// transactions, not more of them.
//
// When the store fails, nothing that depends on it is sent: the core has
// decided things that are not durable, and cannot take them back.  The shell
// then answers Unavailable to all that waits, closes every session and every
// watch, and says so to its owner, who must end the process.  What the store
// holds is what is true; the next start goes on from there, and workers train
// on in the meantime.  (Rejected: trying again.  What the core has decided
// would pile up, and the path of starting from the store is the one that is
// tested.)
#ifndef COORDINATOR_SERVICE_SHELL_H_
#define COORDINATOR_SERVICE_SHELL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "common/session.h"
#include "coordinator/core/coordinator.h"
#include "coordinator/core/effects.h"
#include "coordinator/service/board.h"
#include "coordinator/service/progress.h"
#include "coordinator/store/store.h"
#include "lockstep/v1/job.pb.h"
#include "lockstep/v1/monitor_service.pb.h"

namespace lockstep {

// The coordinator's end of a worker's stream.  Thread-safe; nothing blocks.
class SessionSink {
 public:
  virtual ~SessionSink() = default;
  virtual void SendWelcome(const Welcome& welcome) = 0;
  virtual void SendCommand(const Command& command) = 0;
  // Reports up to `sequence` are stored, or will never be.
  virtual void SendReportsAck(int64_t sequence) = 0;
  // Ends the stream.  Nothing is sent on it after.
  virtual void Close(const absl::Status& status) = 0;
};

// A worker's StepReports.
struct ReportBatch {
  std::vector<std::shared_ptr<v1::StepMetrics>> reports;
  int64_t last_sequence = 0;   // Of the last of `reports`.
  int64_t dropped_count = 0;   // By the worker, ever.
  std::function<void()> done;  // Once they are stored; also when never.
};

// A job as a client submits it.
struct JobRequest {
  std::string request_id;
  std::string spec_digest;  // Of the spec as it came.
  v1::JobSpec spec;         // Resolved.
  std::string plan;         // For people, should it not fit the workers.
};

// Thread-safe.
class Shell {
 public:
  struct Options {
    CoordinatorOptions core;  // The incarnation is the store's business.
    // Draws job ids.  Called with a lock held.
    std::function<uint64_t()> random;
    // Called once, from a thread of the shell, when the store has failed.
    std::function<void(const absl::Status&)> on_store_failure;
  };

  // Loads the store and starts.  `store` and `clock` must outlive this.
  //
  // Errors:
  //   InvalidArgument: an option is out of range.
  //   DataLoss and so on: the store cannot be read.
  static absl::StatusOr<std::unique_ptr<Shell>> Create(Options options,
                                                       Store& store,
                                                       Clock& clock);
  // Stop()s.
  ~Shell();

  const Board& board() const { return *board_; }
  Board& board() { return *board_; }
  CoordinatorIncarnation incarnation() const { return incarnation_; }

  // ---- Clients.  `done` is called once what was decided is durable, from a
  // thread of the shell.

  void SubmitJob(JobRequest request,
                 std::function<void(absl::StatusOr<JobSnapshot>)> done);
  void CancelJob(const JobId& job, const std::string& reason,
                 std::function<void(absl::StatusOr<JobSnapshot>)> done);

  // ---- Workers.

  // Answers by `sink`: a welcome, or the end.
  SessionId OpenSession(const Hello& hello, const std::string& peer_address,
                        std::shared_ptr<SessionSink> sink);
  void OnStatus(SessionId session, const WorkerStatus& status);
  // Reports that are not of the session's own rank in a current generation are
  // not stored, but acknowledged: they will never count.
  void OnStepReports(SessionId session, const WorkerId& worker,
                     ReportBatch batch);
  // The stream has ended; `leaving`: the worker ended it on purpose.
  void OnSessionClosed(SessionId session, bool leaving);

  // Refuses what comes from now on with Unavailable, stores, sends and answers
  // what was decided, ends every session and every watch, and joins the
  // threads.
  void Stop();

 private:
  struct StoreSteps {
    SessionId session;
    // Of the session's rank; the first `reports.size()` of the batch's.
    std::vector<std::shared_ptr<v1::StepMetrics>> reports;
    std::vector<StepRow> rows;  // Likewise, without `metrics`.
    int64_t last_sequence = 0;
    std::function<void()> done;
  };
  // OK when what was decided is durable.
  using Reply = std::function<void(const absl::Status&)>;
  using Item = std::variant<Effect, StoreSteps, Reply>;

  struct JobState {
    JobRecord record;  // As last published.
    ProgressTracker progress;
    int64_t tokens_per_step = 0;
  };

  Shell(Options options, Store& store, Clock& clock)
      : options_(std::move(options)), store_(store), clock_(clock) {}

  absl::Status Start();
  void Queue(Effects effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  JobId DrawJobId() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::function<void(const absl::Status&)> ReplyWithJob(
      absl::StatusOr<JobId> job,
      std::function<void(absl::StatusOr<JobSnapshot>)> done);

  // The outbox thread, and the starting one before.
  void RunOutbox();
  // Errors: the store's; then nothing has been carried out.
  absl::Status CarryOutAll(std::vector<Item>& items);
  absl::Status StoreAll(std::vector<Item>& items);
  void CarryOut(Item& item);
  void CarryOut(Effect& effect);
  void PublishJob(const JobState& job);
  JobState& StateOf(const JobRecord& record);
  std::shared_ptr<SessionSink> SinkOf(SessionId session);
  void Fail(const absl::Status& status, std::vector<Item> items);
  void CloseAll(const absl::Status& status);

  // What the core is told of time.  Notices that this process did not run for a
  // while, stopped or starved: silence since then is not the workers'.
  Moment AwakeNow() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunTimer();

  const Options options_;
  Store& store_;
  Clock& clock_;
  CoordinatorIncarnation incarnation_;
  std::unique_ptr<Board> board_;

  Mutex mutex_;
  CondVar outbox_changed_;
  CondVar timer_changed_;
  // When the timer means to call Tick(); it is late only if this process did
  // not run.
  Instant timer_deadline_ ABSL_GUARDED_BY(mutex_) = InfiniteFuture();
  std::unique_ptr<Coordinator> core_ ABSL_GUARDED_BY(mutex_);
  std::vector<Item> outbox_ ABSL_GUARDED_BY(mutex_);
  SessionId last_session_ ABSL_GUARDED_BY(mutex_);
  // Why nothing is taken any more: Stop() was called, or the store failed.
  absl::Status refusal_ ABSL_GUARDED_BY(mutex_);

  // Apart, since the outbox thread sends while others decide.
  Mutex sinks_mutex_;
  std::map<SessionId, std::shared_ptr<SessionSink>> sinks_
      ABSL_GUARDED_BY(sinks_mutex_);

  // Of the outbox thread alone.
  std::map<JobId, JobState> jobs_;
  std::set<JobId> stale_jobs_;  // Whose progress was not published yet.
  int64_t commit_ = 0;

  std::thread outbox_thread_;
  std::thread timer_thread_;
};

}  // namespace lockstep

#endif  // COORDINATOR_SERVICE_SHELL_H_
