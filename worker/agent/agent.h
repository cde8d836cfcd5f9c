// The worker daemon: what AgentCore decides, done with real processes, sockets
// and streams.
//
// One thread, that of Run(), owns the core, the trainer and the streams, and
// waits for all of them at once with poll(); it waits for nothing else.  The
// trainer's link and output are read and written as far as they go, so that no
// trainer, however stuck or talkative, can keep it from its beat.  gRPC's
// threads and Stop() leave word for it and wake it.
//
// The thread of Run() makes the trainers, and with its end the system kills the
// last of them.
#ifndef WORKER_AGENT_AGENT_H_
#define WORKER_AGENT_AGENT_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "lockstep/v1/worker_service.pb.h"
#include "worker/agent/agent_core.h"
#include "worker/agent/line_writer.h"
#include "worker/agent/session_stream.h"
#include "worker/agent/trainer_process.h"
#include "worker/link/unique_fd.h"

namespace lockstep {

class Agent {
 public:
  struct Options {
    AgentOptions core;
    SessionStreamOptions stream;
    TrainerCommand trainer;

    // Where the trainer's output goes, with a prefix to each line.
    int output_fd = 2;

    // A trainer that closed its link, but does not end for this long, is
    // killed.
    absl::Duration link_end_patience = absl::Seconds(2);

    // At the end: how long the coordinator has to hear that the worker leaves.
    absl::Duration leave_timeout = absl::Seconds(1);
  };

  // `clock` must outlive this.
  //
  // Errors:
  //   InvalidArgument: an option is out of range.
  //   Unavailable: the system refuses a descriptor.
  static absl::StatusOr<std::unique_ptr<Agent>> Create(Options options,
                                                       Clock& clock);
  ~Agent();

  // Works until Stop(), then tells the coordinator that the worker leaves, and
  // returns OK; or until it cannot go on, and returns why.  In both cases the
  // trainer is gone.  Once.
  //
  // Errors:
  //   AlreadyExists: the worker's name is taken.
  //   FailedPrecondition: this process has been replaced, or the coordinator
  //     by an older one.
  //   Otherwise: what the coordinator ended the stream with.
  absl::Status Run();

  // Ends Run(), also before it begins.  Thread-safe, and may be called by a
  // signal handler.
  void Stop();

 private:
  struct StreamMessage {
    int64_t stream;
    v1::CoordinatorMessage message;
  };
  struct StreamClosed {
    int64_t stream;
    absl::Status status;
  };
  using Mail = std::variant<StreamMessage, StreamClosed>;

  // The current trainer, from spawn to reaping.
  struct Trainer {
    Trainer(TrainerId the_id, std::unique_ptr<TrainerProcess> the_process);

    TrainerId id;
    std::unique_ptr<TrainerProcess> process;
    std::string prefix;  // Of its lines.
    bool link_open = true;
    std::optional<Instant> link_end_deadline;  // It has closed its link.
  };

  Agent(Options options, AgentCore core, UniqueFd wake, Clock& clock);

  void Post(Mail mail) ABSL_LOCKS_EXCLUDED(mutex_);
  void Wake();

  // Tells the core of an event, and does what it wants.
  template <typename Event>
  void Tell(Event event);
  void CarryOut(AgentEffects effects);
  void CarryOut(AgentEffect& effect);

  // Waits for whatever comes next, until `deadline` at most, and handles it.
  void WaitAndHandle(Instant deadline);
  void HandleMail();
  void HandleMessage(const StreamMessage& mail);
  void HandleLink(bool readable, bool writable);
  void HandleLinkEnd(const absl::Status& status);
  void HandleTrainerMessages(std::vector<TrainerMessage>& messages);
  void HandleTrainerDeath();
  void PassOn(const std::vector<std::string>& lines);
  void KillTrainerProcess(const std::string& reason);

  SessionStream* stream();  // The current one; null when there is none.
  void Send(v1::WorkerMessage message);
  void LogChanges();
  void ShutDown(bool leaving);

  const Options options_;
  Clock& clock_;
  const UniqueFd wake_;  // An eventfd.
  std::atomic<bool> stop_{false};

  Mutex mutex_;
  std::vector<Mail> mail_ ABSL_GUARDED_BY(mutex_);

  // All below belongs to the thread of Run().
  AgentCore core_;
  std::optional<absl::Status> exit_;
  int64_t stream_number_ = 0;  // Of the current one.
  // By number: the current one, and dropped ones that have yet to end.
  std::map<int64_t, std::unique_ptr<SessionStream>> streams_;
  std::optional<Trainer> trainer_;
  // Trainers that could not be started, to be told to the core.
  std::vector<std::pair<TrainerId, std::string>> stillborn_;
  WorkerStatus logged_status_;
  std::string logged_closing_;

  // Last, so that its thread ends first.
  LineWriter output_;
};

}  // namespace lockstep

#endif  // WORKER_AGENT_AGENT_H_
