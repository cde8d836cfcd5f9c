// Decides what a worker daemon does: keeps a trainer, keeps in contact with the
// coordinator, and passes on between them.
//
// Pure: no I/O, locks, threads, clock or randomness.  Events and `now` go in,
// effects come out, the caller carries them out in order.
//
// The trainer is a child process:
//
//              SpawnTrainer        ready                died
//   (none) ------------> starting ------> ready ------------------+
//     ^                     | died, or not ready in time: killed  |
//     |    back-off over    v                                     v
//     +---------------- dead <------------------------------------+
//
// It holds at most one generation.  What the trainer says of it is passed on as
// it is; what the agent adds is what a dead or stuck trainer cannot say: that
// it died, and how.  What a dead trainer said last stays true where death does
// not change it: output that is committed, and a failure with its first cause.
// A generation that is to be released is asked of the trainer, and after
// `abort_timeout` taken by killing it; from then on nothing is given to it. One
// that is to train, or to commit, and gives no sign of going on for
// `progress_timeout` is killed too.
//
// The trainer needs no coordinator to take a step: while the coordinator is
// away, step reports are kept, up to `report_count_max`; then the oldest are
// thrown away, and counted.
#ifndef WORKER_AGENT_AGENT_CORE_H_
#define WORKER_AGENT_AGENT_CORE_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/session.h"

namespace lockstep {

// Which trainer process speaks: 1, 2, ... as they were spawned.
using TrainerId = Number<struct TrainerTag>;

// ---- Effects.

struct OpenStream {};  // Connect to the coordinator, on a new stream; an open
                       // one is dropped, and not reported as closed.
struct SendHello {
  Hello hello;
};
struct SendStatus {
  WorkerStatus status;
};
struct SendReports {
  int64_t first_sequence = 0;
  std::vector<std::string> reports;  // Serialized; as OnStepReport took them.
  int64_t dropped_count = 0;         // Since the daemon started.
};
struct SpawnTrainer {
  TrainerId trainer;
};
struct KillTrainer {  // Its death is reported by OnTrainerDied.
  TrainerId trainer;
  std::string reason;  // For the log and for how it died.
};
struct TellTrainer {
  TrainerId trainer;
  CommandBody command;
};
struct Exit {  // The daemon must end, with this error.
  absl::Status status;
};

using AgentEffect = std::variant<OpenStream, SendHello, SendStatus, SendReports,
                                 SpawnTrainer, KillTrainer, TellTrainer, Exit>;
using AgentEffects = std::vector<AgentEffect>;

struct AgentOptions {
  WorkerId worker;
  WorkerIncarnation incarnation;  // Larger in each start.
  DeviceDescription device;

  // How long a trainer may take until it is ready, and to let go of a
  // generation, before it is killed.
  absl::Duration start_timeout = absl::Seconds(60);
  absl::Duration abort_timeout = absl::Seconds(5);

  // How long a trainer may train without a sign of going on.  Longer than the
  // time after which a rank gives up another that it waits for, so that the one
  // that waits is not killed for it.
  absl::Duration progress_timeout = absl::Minutes(10);

  // A trainer that died is replaced after this, doubling with each that never
  // held a generation to the end, up to the maximum.
  absl::Duration restart_backoff = absl::Milliseconds(100);
  absl::Duration restart_backoff_max = absl::Seconds(30);

  // A stream that was opened and not welcomed for this long is opened again;
  // once a Welcome has brought the lease, for at most that long: a coordinator
  // that comes back waits no longer than twice the lease.
  absl::Duration hello_timeout = absl::Seconds(10);

  // Between attempts to reach the coordinator: the first, doubling up to the
  // maximum, and to a third of the lease once a Welcome has brought it.
  absl::Duration reconnect_backoff = absl::Milliseconds(100);
  absl::Duration reconnect_backoff_max = absl::Seconds(1);

  // A name that a live worker has is asked for again for this long: its former
  // self may have died without the coordinator knowing.
  absl::Duration name_taken_patience = absl::Seconds(10);

  // The beat is never faster than this, whatever the Welcome says.
  absl::Duration beat_interval_min = absl::Milliseconds(10);

  // Step reports are sent when this old.
  absl::Duration report_interval = absl::Milliseconds(200);
  int report_count_max = 65'536;  // Kept unacknowledged.
  int report_batch_max = 256;     // Of one message.
};

class AgentCore {
 public:
  // Errors:
  //   InvalidArgument: an option is out of range.
  static absl::StatusOr<AgentCore> Create(const AgentOptions& options);

  // Spawns the first trainer and opens the first stream.
  void Start(Instant now, AgentEffects& effects);

  // ---- The coordinator.

  void OnWelcome(Instant now, const Welcome& welcome, AgentEffects& effects);
  void OnCommand(Instant now, const Command& command, AgentEffects& effects);
  // Reports up to `sequence` are stored.
  void OnReportsAck(Instant now, int64_t sequence, AgentEffects& effects);
  // The stream ended, or could not be opened.
  void OnStreamClosed(Instant now, const absl::Status& status,
                      AgentEffects& effects);

  // ---- The trainer.  What an earlier trainer says is ignored.

  void OnTrainerReady(Instant now, TrainerId trainer, AgentEffects& effects);
  // What it holds, whole: no value once it has let go.
  void OnTrainerHolds(Instant now, TrainerId trainer,
                      const std::optional<HeldGeneration>& held,
                      AgentEffects& effects);
  // It goes on with what it does.
  void OnTrainerProgress(Instant now, TrainerId trainer, AgentEffects& effects);
  // It has committed `step` of generation `key`.
  void OnStepReport(Instant now, TrainerId trainer, const GenerationKey& key,
                    int64_t step, std::string report, AgentEffects& effects);
  // `how`: signal or exit code, and its last lines.
  void OnTrainerDied(Instant now, TrainerId trainer, const std::string& how,
                     AgentEffects& effects);

  void Tick(Instant now, AgentEffects& effects);
  Instant NextDeadline() const;

  // For the shell's logs and for tests.
  const WorkerStatus& status() const { return status_; }
  bool connected() const { return stream_state_ == StreamState::kWelcome; }

 private:
  enum class TrainerState { kDead, kStarting, kReady };
  enum class StreamState { kClosed, kHello, kWelcome };

  explicit AgentCore(const AgentOptions& options);

  // What every call begins with.
  void Expire(Instant now, AgentEffects& effects);
  // And ends with: sends what the coordinator has not been told.
  void Flush(Instant now, AgentEffects& effects);

  void Spawn(Instant now, AgentEffects& effects);
  // It is heard of, or told to go on.
  void RenewProgress(Instant now);
  void Kill(std::string reason, AgentEffects& effects);
  void Open(Instant now, AgentEffects& effects);
  void Apply(Instant now, const CommandBody& body, AgentEffects& effects);

  AgentOptions options_;

  TrainerState trainer_state_ = TrainerState::kDead;
  TrainerId trainer_;         // Last spawned; 0 before the first.
  TrainerId holder_;          // Which one holds, or held, status_.held.
  Instant trainer_deadline_;  // kDead: respawn; kStarting: kill.
  int deaths_in_a_row_ = 0;   // Without a generation held to the end.
  bool kill_sent_ = false;    // To the current trainer; it is as good as dead.
  std::optional<Instant> abort_deadline_;  // While ABORTING.
  bool commit_told_ = false;               // Of status_.held.
  // While it is to train, or to commit.
  std::optional<Instant> progress_deadline_;

  StreamState stream_state_ = StreamState::kClosed;
  Instant stream_deadline_;  // kClosed, kHello: open again.
  int64_t stream_ = 0;       // Last opened.
  int failed_opens_ = 0;     // In a row.
  std::optional<Instant> name_taken_since_;
  CoordinatorIncarnation coordinator_incarnation_;
  std::optional<absl::Duration> lease_;
  absl::Duration beat_interval_;
  Instant next_beat_;

  WorkerStatus status_;
  std::optional<WorkerStatus> told_;  // On this stream.

  std::deque<std::string> reports_;  // Unacknowledged, in order.
  int64_t first_report_ = 1;         // Sequence of reports_.front().
  int64_t next_unsent_ = 1;          // On this stream.
  int64_t dropped_count_ = 0;
  Instant next_flush_;
};

}  // namespace lockstep

#endif  // WORKER_AGENT_AGENT_CORE_H_
