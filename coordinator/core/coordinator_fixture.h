// A coordinator's core, with workers that a test plays one message at a time:
//
//   Player& a = Attach("a");
//   Player& b = Attach("b");
//   const JobId job = Submit({.min_workers = 2});
//   a.Obeys().Joins();              // a does what it was told, then reports.
//   b.Obeys().Joins();
//   EXPECT_EQ(b.last<Start>().peer_addresses, ...);
//
// Every call's effects are checked by FakeShell.
#ifndef COORDINATOR_CORE_COORDINATOR_FIXTURE_H_
#define COORDINATOR_CORE_COORDINATOR_FIXTURE_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/core/coordinator.h"
#include "coordinator/core/fake_shell.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {

// gtest prints these in failures.
void PrintTo(JobState state, std::ostream* out);
void PrintTo(Contact contact, std::ostream* out);
void PrintTo(Phase phase, std::ostream* out);

inline constexpr absl::Duration kInstant = absl::Nanoseconds(1);

class CoordinatorFixture : public ::testing::Test {
 public:
  class Player;

  // What a job asks for; the rest is made up.
  struct JobRequest {
    int min_workers = 1;
    int max_workers = 0;  // 0: min_workers.
    int micro_batches = 16;
    int priority = 0;
    int failures_max = 5;
    std::string output_directory;  // Empty: one of its own.
    bool bfloat16 = false;
    std::optional<MemoryNeeds> memory;
    std::optional<int> zero_stage = 0;
  };

 protected:
  CoordinatorFixture();
  ~CoordinatorFixture() override;

  const CoordinatorOptions& options() const { return options_; }

  // Replaces the coordinator by one that knows what is stored.  Every stream is
  // gone, and workers say hello again when the test has them do so.
  void Restart() { Restart(options_); }
  void Restart(CoordinatorOptions options);

  Moment now() const { return {now_, absl::UnixEpoch() + now_.since_start}; }
  // Time passes, and nothing is called.
  void Pass(absl::Duration duration) { now_ = now_ + duration; }
  void Tick();
  // Time passes, and Tick() is called whenever it is due, and at the end.
  void PassTicking(absl::Duration duration);

  // A worker that says hello with a trainer ready.
  Player& Attach(const std::string& name,
                 const std::string& numeric_class = "cpu/x");
  // One that has yet to.
  Player& Introduce(const std::string& name,
                    const std::string& numeric_class = "cpu/x");
  Player& player(const WorkerId& id) { return *players_.at(id); }
  // The players of a job's generation, in order of rank.
  std::vector<Player*> MembersOf(const JobId& job);

  JobId Submit(const JobRequest& request);
  // With every field as given; the digest and the spec are `spec`.
  absl::StatusOr<JobId> TrySubmit(const JobRequest& request,
                                  const std::string& request_id,
                                  const std::string& spec);
  absl::Status Cancel(const JobId& job, const std::string& reason = "");

  // Brings the job's generation, just begun, so far.
  void AllJoin(const JobId& job);
  void AllTrain(const JobId& job);
  void AllReady(const JobId& job);

  // As published.
  const JobRecord& Job(const JobId& id) const { return shell_.jobs().at(id); }
  GenerationKey KeyOfJob(const JobId& id) const {
    return {id, Job(id).generation};
  }
  std::string Reason(const JobId& id) const { return Job(id).reason; }

  FakeShell& shell() { return shell_; }
  Coordinator& core() { return *core_; }
  // Of the last call.
  const Effects& effects() const { return effects_; }
  template <typename T>
  int CountEffects() const {
    int count = 0;
    for (const Effect& e : effects_) count += std::holds_alternative<T>(e);
    return count;
  }

 private:
  friend class Player;
  template <typename F>
  auto Call(F call) {
    effects_.clear();
    auto result = call();
    shell_.Carry(effects_, *core_);
    return result;
  }
  template <typename F>
  void CallVoid(F call) {
    effects_.clear();
    call();
    shell_.Carry(effects_, *core_);
  }

  CoordinatorOptions options_;
  Instant now_{absl::Seconds(1000)};
  FakeShell shell_;
  std::optional<Coordinator> core_;
  Effects effects_;
  std::map<WorkerId, std::unique_ptr<Player>> players_;
  int64_t last_session_ = 0;
  int64_t last_job_ = 0;
};

// Plays a worker: its daemon and its trainer.  Each verb is one message to the
// coordinator unless it says otherwise.
class CoordinatorFixture::Player {
 public:
  Player(CoordinatorFixture* fixture, const std::string& name,
         const std::string& numeric_class);

  // ---- The stream.

  // Opens a new stream, and takes notice of the welcome; the test expects OK.
  Player& Hello();
  // Says `hello` on a new stream; on OK it is the player's.
  absl::Status TryHello(const struct Hello& hello);
  struct Hello NextHello();  // As Hello() would say it.
  Player& Beat();            // Its status as it stands.
  Player& Says(const WorkerStatus& status);
  // On a stream that it had; it may have been replaced.
  Player& SaysOn(SessionId session, const WorkerStatus& status);
  Player& Breaks();  // Its stream breaks.
  Player& Leaves();  // It ends its stream on purpose.
  // A new daemon under this name, with nothing held; says nothing yet.
  Player& StartsAnew();

  // ---- What it does.

  // Receives what was sent on its stream and applies it: takes its place, goes
  // on to CONNECTING, lets go, commits.  Says nothing yet.
  Player& Receives();
  Player& Obeys() { return Receives().Beat(); }
  Player& Joins();  // With addresses "<name>><rank>", and a nonce at rank 0.
  Player& Is(Phase phase);
  Player& Fails(Failure::Cause cause, const std::string& message);
  Player& Commits(int64_t committed_step_count);  // By a step report.

  // ---- What it sees.

  const WorkerId& id() const { return id_; }
  SessionId session() const { return session_; }
  const FakeShell::Stream& stream() const {
    return fixture_->shell_.stream(session_);
  }
  const WorkerView& view() const { return fixture_->shell_.workers().at(id_); }
  bool known() const { return fixture_->shell_.workers().count(id_) > 0; }
  Contact contact() const { return view().contact; }
  bool free() const { return !view().assigned.has_value(); }
  bool holds() const { return status.held.has_value(); }
  // "Prepare 1", "Start 1", "Release 1", "CommitOutput 1", by generation, as
  // sent on its stream.
  std::vector<std::string> commands() const;
  // The last command of a kind sent on its stream.
  template <typename T>
  const T& last() const {
    const T* last = nullptr;
    for (const Command& c : stream().commands) {
      if (const auto* body = std::get_if<T>(&c.body)) last = body;
    }
    if (last == nullptr) throw std::logic_error("no such command was sent");
    return *last;
  }

  // Free to be changed by the test, and said by Beat() or Hello().
  WorkerStatus status;
  WorkerIncarnation incarnation{1};
  CoordinatorIncarnation met;  // As the last welcome said.
  DeviceDescription device;

 private:
  CoordinatorFixture* fixture_;
  WorkerId id_;
  int64_t stream_ = 0;
  SessionId session_;
  std::vector<WorkerId> peers_;  // Of its generation.
};

}  // namespace lockstep

#endif  // COORDINATOR_CORE_COORDINATOR_FIXTURE_H_
