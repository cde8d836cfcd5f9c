#include "worker/agent/agent_core.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr absl::Duration kLease = absl::Seconds(3);
constexpr absl::Duration kBeat = absl::Milliseconds(750);
const GenerationKey kKey{{"j"}, 1};
const GenerationKey kNextKey{{"j"}, 2};

AgentOptions Options() {
  AgentOptions options;
  options.worker = {"w1"};
  options.incarnation = {7};
  return options;
}

Command PrepareCommand(int64_t sequence, const GenerationKey& key) {
  return {sequence, Prepare{.key = key,
                            .rank = 1,
                            .workers = {{"w0"}, {"w1"}},
                            .spec = std::make_shared<std::string>("spec")}};
}

Command ReleaseCommand(int64_t sequence, const GenerationKey& key) {
  return {sequence, Release{key, "over"}};
}

HeldGeneration Held(const GenerationKey& key, Phase phase,
                    int64_t committed = 0) {
  HeldGeneration held;
  held.key = key;
  held.rank = 1;
  held.phase = phase;
  held.committed_step_count = committed;
  return held;
}

template <typename T>
std::vector<T> All(const AgentEffects& effects) {
  std::vector<T> found;
  for (const AgentEffect& effect : effects) {
    if (const T* e = std::get_if<T>(&effect)) found.push_back(*e);
  }
  return found;
}

// The core at a moment, with the effects of the last call.
class Subject {
 public:
  explicit Subject(const AgentOptions& options = Options())
      : core(AgentCore::Create(options).value()) {}

  // Runs `call` now; keeps its effects.
  template <typename Call>
  const AgentEffects& Do(Call call) {
    effects.clear();
    call();
    return effects;
  }

  const AgentEffects& Start() {
    return Do([&] { core.Start(now, effects); });
  }
  const AgentEffects& Tick(absl::Duration later) {
    now = now + later;
    return Do([&] { core.Tick(now, effects); });
  }
  const AgentEffects& Welcome(int64_t incarnation = 1) {
    return Do([&] {
      core.OnWelcome(now, {{incarnation}, kLease, kBeat}, effects);
    });
  }
  const AgentEffects& Closed(absl::Status status) {
    return Do([&] { core.OnStreamClosed(now, status, effects); });
  }
  const AgentEffects& Command(const struct Command& command) {
    return Do([&] { core.OnCommand(now, command, effects); });
  }
  const AgentEffects& Ack(int64_t sequence) {
    return Do([&] { core.OnReportsAck(now, sequence, effects); });
  }
  const AgentEffects& Ready(int64_t trainer = 1) {
    return Do([&] { core.OnTrainerReady(now, {trainer}, effects); });
  }
  const AgentEffects& Holds(std::optional<HeldGeneration> held,
                            int64_t trainer = 1) {
    return Do([&] { core.OnTrainerHolds(now, {trainer}, held, effects); });
  }
  const AgentEffects& Report(int64_t step, int64_t trainer = 1,
                             const GenerationKey& key = kKey) {
    return Do([&] {
      core.OnStepReport(now, {trainer}, key, step, std::to_string(step),
                        effects);
    });
  }
  const AgentEffects& Died(int64_t trainer, const std::string& how) {
    return Do([&] { core.OnTrainerDied(now, {trainer}, how, effects); });
  }

  // Connected, with a trainer that holds nothing.
  void Serve() {
    Start();
    Welcome();
    Ready();
  }
  // Connected, with a trainer that trains kKey.
  void Train() {
    Serve();
    Command(PrepareCommand(1, kKey));
    Holds(Held(kKey, Phase::kTraining));
  }
  // A broken stream is open again, and welcomed.
  void Reconnect(int64_t incarnation = 1) {
    Closed(absl::UnavailableError("broken"));
    Tick(absl::Seconds(1));
    Welcome(incarnation);
  }

  std::optional<Phase> HeldPhase() const {
    if (!core.status().held.has_value()) return std::nullopt;
    return core.status().held->phase;
  }

  AgentCore core;
  Instant now{absl::Hours(1)};
  AgentEffects effects;
};

// --------------------------------------------------------------- trainer

TEST(AgentCoreTest, StartsATrainerAndSaysHello) {
  Subject s;

  s.Start();

  ASSERT_THAT(s.effects, SizeIs(3));
  EXPECT_EQ(std::get<SpawnTrainer>(s.effects[0]).trainer, TrainerId{1});
  EXPECT_TRUE(std::holds_alternative<OpenStream>(s.effects[1]));
  const Hello& hello = std::get<SendHello>(s.effects[2]).hello;
  EXPECT_EQ(hello.worker, WorkerId{"w1"});
  EXPECT_EQ(hello.incarnation, WorkerIncarnation{7});
  EXPECT_EQ(hello.stream, 1);
  EXPECT_EQ(hello.coordinator_incarnation, CoordinatorIncarnation{0});
  EXPECT_FALSE(hello.status.trainer_ready);
}

TEST(AgentCoreTest, TrainersThatDieAreReplacedAfterDoublingWaitsUpToAMaximum) {
  AgentOptions options = Options();
  options.restart_backoff = absl::Milliseconds(100);
  options.restart_backoff_max = absl::Milliseconds(500);
  Subject s(options);
  s.Start();
  s.Welcome();

  const absl::Duration waits[] = {
      absl::Milliseconds(100), absl::Milliseconds(200), absl::Milliseconds(400),
      absl::Milliseconds(500), absl::Milliseconds(500)};
  int64_t trainer = 1;
  for (const absl::Duration wait : waits) {
    s.Died(trainer, "exit code 1");
    s.Tick(wait - absl::Nanoseconds(1));
    EXPECT_THAT(All<SpawnTrainer>(s.effects), IsEmpty()) << wait;

    s.Tick(absl::Nanoseconds(1));
    const auto spawned = All<SpawnTrainer>(s.effects);
    ASSERT_THAT(spawned, SizeIs(1)) << wait;
    EXPECT_EQ(spawned[0].trainer.value, ++trainer);
  }
  EXPECT_EQ(s.core.status().trainer_death_count, 5);
}

TEST(AgentCoreTest, AGenerationHeldToTheEndMakesTheNextWaitShortAgain) {
  Subject s;
  s.Start();
  s.Welcome();
  s.Died(1, "");
  s.Tick(absl::Milliseconds(100));
  s.Died(2, "");
  s.Tick(absl::Milliseconds(200));
  s.Ready(3);
  s.Command(PrepareCommand(1, kKey));
  s.Command(ReleaseCommand(2, kKey));
  s.Holds(std::nullopt, 3);

  s.Died(3, "");
  s.Tick(absl::Milliseconds(100));

  EXPECT_THAT(All<SpawnTrainer>(s.effects), SizeIs(1));
}

TEST(AgentCoreTest, ATrainerNotReadyInTimeIsKilledOnceAndNotBefore) {
  Subject s;
  s.Start();

  s.Tick(Options().start_timeout - absl::Nanoseconds(1));
  EXPECT_THAT(All<KillTrainer>(s.effects), IsEmpty());
  s.Tick(absl::Nanoseconds(1));
  const auto killed = All<KillTrainer>(s.effects);
  ASSERT_THAT(killed, SizeIs(1));
  EXPECT_EQ(killed[0].trainer, TrainerId{1});
  EXPECT_THAT(killed[0].reason, HasSubstr("not ready"));
  EXPECT_GT(s.core.NextDeadline(), s.now);
  s.Tick(absl::Hours(1));
  EXPECT_THAT(All<KillTrainer>(s.effects), IsEmpty());
}

TEST(AgentCoreTest, AKilledTrainerThatSaysReadyIsGivenNothing) {
  Subject s;
  s.Start();
  s.Tick(Options().start_timeout);
  s.Welcome();

  s.Ready();
  EXPECT_FALSE(s.core.status().trainer_ready);
  s.Command(PrepareCommand(1, kKey));
  EXPECT_THAT(All<TellTrainer>(s.effects), IsEmpty());
}

TEST(AgentCoreTest, WhatAnEarlierTrainerSaysIsIgnored) {
  Subject s;
  s.Train();
  s.Died(1, "signal 9 (Killed)");
  s.Tick(absl::Milliseconds(100));
  const WorkerStatus before = s.core.status();

  s.Ready(1);
  s.Holds(std::nullopt, 1);
  s.Holds(Held(kKey, Phase::kTraining, 9), 1);
  s.Report(9, 1);
  s.Died(1, "again");

  EXPECT_EQ(s.core.status(), before);
  s.Tick(absl::Seconds(1));
  EXPECT_THAT(All<SendReports>(s.effects), IsEmpty());
}

TEST(AgentCoreTest, PrepareIsPassedToTheTrainerAndHeld) {
  Subject s;
  s.Serve();

  s.Command(PrepareCommand(1, kKey));

  const auto told = All<TellTrainer>(s.effects);
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_EQ(told[0].trainer, TrainerId{1});
  EXPECT_EQ(std::get<Prepare>(told[0].command).key, kKey);
  const auto statuses = All<SendStatus>(s.effects);
  ASSERT_THAT(statuses, SizeIs(1));
  EXPECT_EQ(statuses[0].status.applied_sequence, 1);
  ASSERT_TRUE(statuses[0].status.held.has_value());
  EXPECT_EQ(statuses[0].status.held->phase, Phase::kPreparing);
  EXPECT_EQ(statuses[0].status.held->rank, 1);
}

TEST(AgentCoreTest, PrepareWithoutAReadyTrainerHoldsNothing) {
  Subject s;
  s.Start();
  s.Welcome();

  s.Command(PrepareCommand(1, kKey));

  EXPECT_THAT(All<TellTrainer>(s.effects), IsEmpty());
  const auto statuses = All<SendStatus>(s.effects);
  ASSERT_THAT(statuses, SizeIs(1));
  EXPECT_EQ(statuses[0].status.applied_sequence, 1);
  EXPECT_FALSE(statuses[0].status.held.has_value());
}

TEST(AgentCoreTest, PrepareWhileHoldingIsRefused) {
  Subject s;
  s.Train();

  s.Command(PrepareCommand(2, kNextKey));

  EXPECT_THAT(All<TellTrainer>(s.effects), IsEmpty());
  EXPECT_EQ(s.core.status().held->key, kKey);
  EXPECT_EQ(s.core.status().applied_sequence, 2);
}

TEST(AgentCoreTest, CommandsAboutAnotherGenerationHaveNoEffect) {
  Subject s;
  s.Train();

  s.Command(ReleaseCommand(2, kNextKey));
  EXPECT_THAT(All<TellTrainer>(s.effects), IsEmpty());
  s.Command({3, Start{.key = kNextKey}});
  EXPECT_THAT(All<TellTrainer>(s.effects), IsEmpty());
  s.Command({4, CommitOutput{kNextKey}});
  EXPECT_THAT(All<TellTrainer>(s.effects), IsEmpty());

  EXPECT_EQ(s.HeldPhase(), Phase::kTraining);
}

TEST(AgentCoreTest, ARepeatedCommandIsAppliedOnce) {
  Subject s;
  s.Train();
  s.Command(ReleaseCommand(2, kKey));
  s.Holds(std::nullopt);

  s.Command(PrepareCommand(1, kKey));

  EXPECT_THAT(All<TellTrainer>(s.effects), IsEmpty());
  EXPECT_FALSE(s.core.status().held.has_value());
}

TEST(AgentCoreTest, ReleaseIsAskedOfTheTrainerAndTrueOnceItLetGo) {
  Subject s;
  s.Train();

  s.Command(ReleaseCommand(2, kKey));
  EXPECT_THAT(All<TellTrainer>(s.effects), SizeIs(1));
  EXPECT_EQ(s.HeldPhase(), Phase::kAborting);

  s.Holds(std::nullopt);
  EXPECT_FALSE(s.core.status().held.has_value());
  s.Tick(Options().abort_timeout);
  EXPECT_THAT(All<KillTrainer>(s.effects), IsEmpty());
}

TEST(AgentCoreTest, WhatATrainerSaysWhileAbortingDoesNotUndoIt) {
  Subject s;
  s.Train();
  s.Command(ReleaseCommand(2, kKey));

  s.Holds(Held(kKey, Phase::kFailed));

  EXPECT_EQ(s.HeldPhase(), Phase::kAborting);
}

TEST(AgentCoreTest, WhatIsBeingReleasedIsNeitherStartedNorCommitted) {
  Subject s;
  s.Train();
  s.Command(ReleaseCommand(2, kKey));

  s.Command({3, Start{.key = kKey}});
  EXPECT_THAT(All<TellTrainer>(s.effects), IsEmpty());
  s.Command({4, CommitOutput{kKey}});
  EXPECT_THAT(All<TellTrainer>(s.effects), IsEmpty());
  s.Command(ReleaseCommand(5, kKey));
  EXPECT_THAT(All<TellTrainer>(s.effects), IsEmpty());
}

TEST(AgentCoreTest, ATrainerThatDoesNotLetGoInTimeIsKilledAndThenHoldsNothing) {
  Subject s;
  s.Train();
  s.Command(ReleaseCommand(2, kKey));

  s.Tick(Options().abort_timeout - absl::Nanoseconds(1));
  EXPECT_THAT(All<KillTrainer>(s.effects), IsEmpty());
  s.Tick(absl::Nanoseconds(1));
  const auto killed = All<KillTrainer>(s.effects);
  ASSERT_THAT(killed, SizeIs(1));
  EXPECT_THAT(killed[0].reason, HasSubstr("let go"));
  EXPECT_GT(s.core.NextDeadline(), s.now);
  EXPECT_FALSE(s.core.status().trainer_ready);
  EXPECT_TRUE(s.core.status().held.has_value());

  s.Died(1, "signal 9 (Killed)");
  EXPECT_FALSE(s.core.status().held.has_value());
  EXPECT_EQ(s.core.status().trainer_death_count, 1);
}

// It let go just as it was killed: what it is given now dies with it.
TEST(AgentCoreTest, ATrainerThatIsBeingKilledIsGivenNoGeneration) {
  Subject s;
  s.Train();
  s.Command(ReleaseCommand(2, kKey));
  s.Tick(Options().abort_timeout);

  s.Holds(std::nullopt);
  s.Command(PrepareCommand(3, kNextKey));

  EXPECT_THAT(All<TellTrainer>(s.effects), IsEmpty());
  EXPECT_FALSE(s.core.status().trainer_ready);
}

TEST(AgentCoreTest, ADeathWhileHoldingIsAFailureOfTheWorkerUntilReleased) {
  Subject s;
  s.Train();

  s.Died(1, "signal 11 (Segmentation fault)");
  const auto statuses = All<SendStatus>(s.effects);
  ASSERT_THAT(statuses, SizeIs(1));
  const WorkerStatus& status = statuses[0].status;
  EXPECT_EQ(status.held->phase, Phase::kFailed);
  EXPECT_EQ(status.held->failure->cause, Failure::Cause::kWorker);
  EXPECT_EQ(status.held->failure->code, absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.held->failure->message,
              HasSubstr("signal 11 (Segmentation fault)"));
  EXPECT_EQ(status.last_trainer_death, "signal 11 (Segmentation fault)");

  // The next trainer does not hold it, and cannot change it.
  s.Tick(absl::Milliseconds(100));
  s.Ready(2);
  s.Holds(std::nullopt, 2);
  EXPECT_EQ(s.HeldPhase(), Phase::kFailed);
  s.Holds(std::nullopt, 1);
  EXPECT_EQ(s.HeldPhase(), Phase::kFailed);

  s.Command(ReleaseCommand(2, kKey));
  EXPECT_THAT(All<TellTrainer>(s.effects), IsEmpty());
  EXPECT_FALSE(s.core.status().held.has_value());
  s.Command(PrepareCommand(3, kNextKey));
  const auto told = All<TellTrainer>(s.effects);
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_EQ(told[0].trainer, TrainerId{2});
}

TEST(AgentCoreTest, ReleaseWithADeadTrainerIsTrueAtOnce) {
  Subject s;
  s.Train();
  s.Died(1, "");

  s.Command(ReleaseCommand(2, kKey));

  EXPECT_FALSE(s.core.status().held.has_value());
}

// That the job itself is at fault is not hidden by the trainer's end.
TEST(AgentCoreTest, AFailureKeepsItsFirstCauseWhenTheTrainerDiesAfterIt) {
  Subject s;
  s.Train();
  HeldGeneration failed = Held(kKey, Phase::kFailed);
  failed.failure = Failure{.cause = Failure::Cause::kJob,
                           .code = absl::StatusCode::kInvalidArgument,
                           .message = "wrong shape"};
  s.Holds(failed);

  s.Died(1, "exit code 1");

  EXPECT_EQ(s.core.status().held->failure, failed.failure);
}

TEST(AgentCoreTest, CommittedOutputStaysFinishedWhenTheTrainerDiesAfterIt) {
  Subject s;
  s.Train();
  s.Holds(Held(kKey, Phase::kFinished, 10));

  s.Died(1, "signal 9 (Killed)");

  EXPECT_EQ(s.HeldPhase(), Phase::kFinished);
  EXPECT_FALSE(s.core.status().trainer_ready);
}

TEST(AgentCoreTest, TheStepCountOfAHeldGenerationNeverGoesBack) {
  Subject s;
  s.Train();
  s.Report(7);
  EXPECT_EQ(s.core.status().held->committed_step_count, 8);

  s.Holds(Held(kKey, Phase::kTraining, 5));
  EXPECT_EQ(s.core.status().held->committed_step_count, 8);
}

TEST(AgentCoreTest, AReportOfAnEarlierGenerationDoesNotCountForTheHeldOne) {
  Subject s;
  s.Train();
  s.Command(ReleaseCommand(2, kKey));
  s.Holds(std::nullopt);
  s.Command(PrepareCommand(3, kNextKey));

  s.Report(7, 1, kKey);

  EXPECT_EQ(s.core.status().held->committed_step_count, 0);
}

// ---------------------------------------------------------------- stream

TEST(AgentCoreTest, NothingIsSentBetweenHelloAndWelcome) {
  Subject s;
  s.Start();

  s.Ready();
  EXPECT_THAT(s.effects, IsEmpty());
  s.Report(0);
  EXPECT_THAT(s.effects, IsEmpty());
  s.Tick(absl::Seconds(5));
  EXPECT_THAT(s.effects, IsEmpty());

  s.Welcome();
  ASSERT_THAT(s.effects, SizeIs(2));
  EXPECT_THAT(std::get<SendReports>(s.effects[0]).reports, ElementsAre("0"));
  EXPECT_TRUE(std::get<SendStatus>(s.effects[1]).status.trainer_ready);
}

TEST(AgentCoreTest, StatusIsSentAtOnceWhenItChangesAndOtherwiseEveryBeat) {
  Subject s;
  s.Serve();

  s.Tick(kBeat - absl::Nanoseconds(1));
  EXPECT_THAT(s.effects, IsEmpty());
  s.Tick(absl::Nanoseconds(1));
  EXPECT_THAT(All<SendStatus>(s.effects), SizeIs(1));
  s.Tick(kBeat / 2);
  s.Command(PrepareCommand(1, kKey));
  EXPECT_THAT(All<SendStatus>(s.effects), SizeIs(1));
  s.Tick(kBeat - absl::Nanoseconds(1));
  EXPECT_THAT(s.effects, IsEmpty());
}

TEST(AgentCoreTest, ABeatThatACoordinatorSetsTooFastIsSlowedDown) {
  Subject s;
  s.Start();
  s.Do([&] {
    s.core.OnWelcome(s.now, {{1}, absl::ZeroDuration(), absl::ZeroDuration()},
                     s.effects);
  });

  s.Tick(absl::ZeroDuration());

  EXPECT_GE(s.core.NextDeadline(), s.now + Options().beat_interval_min);
}

TEST(AgentCoreTest, ReconnectsAfterWaitsThatDoubleUpToAThirdOfTheLease) {
  AgentOptions options = Options();
  options.reconnect_backoff_max = absl::Seconds(30);
  Subject s(options);
  s.Serve();

  absl::Duration longest;
  absl::Duration first;
  for (int attempt = 0; attempt < 20; ++attempt) {
    s.Closed(absl::UnavailableError("refused"));
    const absl::Duration wait = s.core.NextDeadline() - s.now;
    if (attempt == 0) first = wait;
    longest = std::max(longest, wait);
    s.Tick(wait);
    ASSERT_THAT(All<OpenStream>(s.effects), SizeIs(1));
    const auto hello = All<SendHello>(s.effects);
    ASSERT_THAT(hello, SizeIs(1));
    EXPECT_EQ(hello[0].hello.stream, attempt + 2);
    EXPECT_EQ(hello[0].hello.coordinator_incarnation,
              CoordinatorIncarnation{1});
  }

  // Each is spread over the upper half of its range.
  EXPECT_GE(first, absl::Milliseconds(50));
  EXPECT_LE(first, absl::Milliseconds(100));
  EXPECT_GT(longest, kLease / 6);
  EXPECT_LE(longest, kLease / 3);
}

TEST(AgentCoreTest, TwoWorkersDoNotComeBackAtTheSameMoment) {
  std::set<absl::Duration> waits;
  for (const char* name : {"w1", "w2", "w3", "w4"}) {
    AgentOptions options = Options();
    options.worker = {name};
    Subject s(options);
    s.Serve();
    s.Closed(absl::UnavailableError("broken"));
    waits.insert(s.core.NextDeadline() - s.now);
  }
  EXPECT_THAT(waits, SizeIs(4));
}

TEST(AgentCoreTest, AStreamNotWelcomedInTimeIsOpenedAgain) {
  Subject s;
  s.Start();

  s.Tick(Options().hello_timeout - absl::Nanoseconds(1));
  EXPECT_THAT(s.effects, IsEmpty());
  s.Tick(absl::Nanoseconds(1));
  EXPECT_THAT(All<OpenStream>(s.effects), SizeIs(1));
  EXPECT_EQ(All<SendHello>(s.effects).at(0).hello.stream, 2);
}

TEST(AgentCoreTest, OnceTheLeaseIsKnownAWelcomeIsNotAwaitedForLonger) {
  Subject s;
  s.Serve();
  s.Closed(absl::UnavailableError("broken"));
  s.Tick(absl::Seconds(1));
  ASSERT_THAT(All<OpenStream>(s.effects), SizeIs(1));

  s.Tick(kLease);

  EXPECT_THAT(All<OpenStream>(s.effects), SizeIs(1));
}

// The stream it came on was given up at the same moment.
TEST(AgentCoreTest, AWelcomeThatComesTooLateDoesNotCountForTheNextStream) {
  Subject s;
  s.Start();
  s.now = s.now + Options().hello_timeout;

  s.Welcome();

  EXPECT_FALSE(s.core.connected());
  EXPECT_EQ(All<SendHello>(s.effects).at(0).hello.stream, 2);
  EXPECT_THAT(All<SendStatus>(s.effects), IsEmpty());
}

TEST(AgentCoreTest, ACoordinatorThatStartedAgainCountsItsCommandsFromOne) {
  Subject s;
  s.Train();
  s.Command({2, Start{.key = kKey}});

  s.Reconnect(2);
  EXPECT_EQ(s.core.status().applied_sequence, 0);
  EXPECT_EQ(All<SendStatus>(s.effects).at(0).status.applied_sequence, 0);
  s.Command(ReleaseCommand(1, kKey));

  EXPECT_EQ(s.core.status().applied_sequence, 1);
  EXPECT_EQ(s.HeldPhase(), Phase::kAborting);
}

TEST(AgentCoreTest, ACoordinatorWhoseIncarnationWentBackEndsTheDaemon) {
  Subject s;
  s.Start();
  s.Welcome(5);
  s.Closed(absl::UnavailableError("broken"));
  s.Tick(absl::Seconds(1));

  s.Welcome(4);

  const auto exit = All<Exit>(s.effects);
  ASSERT_THAT(exit, SizeIs(1));
  EXPECT_EQ(exit[0].status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(exit[0].status.message()), HasSubstr("incarnation"));
}

TEST(AgentCoreTest, ATakenNameIsAskedForAgainUntilPatienceEnds) {
  Subject s;
  s.Start();
  const absl::Status taken = absl::AlreadyExistsError("belongs to pid 1");
  const Instant first = s.now;

  while (s.now - first < Options().name_taken_patience) {
    ASSERT_THAT(All<Exit>(s.Closed(taken)), IsEmpty()) << s.now - first;
    s.Tick(s.core.NextDeadline() - s.now);
    ASSERT_THAT(All<OpenStream>(s.effects), SizeIs(1));
  }
  const auto exit = All<Exit>(s.Closed(taken));

  ASSERT_THAT(exit, SizeIs(1));
  EXPECT_EQ(exit[0].status, taken);
}

TEST(AgentCoreTest, AWelcomeRenewsThePatienceForATakenName) {
  Subject s;
  s.Start();
  s.Closed(absl::AlreadyExistsError("taken"));
  s.Tick(absl::Seconds(1));
  s.Welcome();
  s.Closed(absl::UnavailableError("broken"));
  s.Tick(Options().name_taken_patience);

  EXPECT_THAT(All<Exit>(s.Closed(absl::AlreadyExistsError("taken"))),
              IsEmpty());
}

struct ClosedCase {
  const char* name;
  absl::StatusCode code;
  bool exits;
};

class StreamClosedTest : public ::testing::TestWithParam<ClosedCase> {};

TEST_P(StreamClosedTest, EndsTheDaemonOnlyWhereTryingAgainCannotHelp) {
  Subject s;
  s.Start();

  s.Closed(absl::Status(GetParam().code, "why"));

  EXPECT_EQ(!All<Exit>(s.effects).empty(), GetParam().exits);
}

INSTANTIATE_TEST_SUITE_P(
    All, StreamClosedTest,
    ::testing::Values(
        ClosedCase{"Ok", absl::StatusCode::kOk, false},
        ClosedCase{"Unavailable", absl::StatusCode::kUnavailable, false},
        ClosedCase{"Aborted", absl::StatusCode::kAborted, false},
        ClosedCase{"Full", absl::StatusCode::kResourceExhausted, false},
        ClosedCase{"Superseded", absl::StatusCode::kFailedPrecondition, true},
        ClosedCase{"BadMessage", absl::StatusCode::kInvalidArgument, true},
        ClosedCase{"NoSuchService", absl::StatusCode::kUnimplemented, true},
        ClosedCase{"NoEntry", absl::StatusCode::kPermissionDenied, true}),
    [](const auto& p) { return p.param.name; });

// --------------------------------------------------------------- reports

TEST(AgentCoreTest, ReportsAreSentTogetherWhenTheFirstIsOldEnough) {
  Subject s;
  s.Train();
  s.Report(0);
  EXPECT_THAT(s.effects, IsEmpty());
  s.Tick(Options().report_interval / 2);
  s.Report(1);

  s.Tick(Options().report_interval / 2 - absl::Nanoseconds(1));
  EXPECT_THAT(All<SendReports>(s.effects), IsEmpty());
  s.Tick(absl::Nanoseconds(1));

  const auto sent = All<SendReports>(s.effects);
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].first_sequence, 1);
  EXPECT_THAT(sent[0].reports, ElementsAre("0", "1"));
}

TEST(AgentCoreTest, AFullBatchIsSentAtOnce) {
  AgentOptions options = Options();
  options.report_batch_max = 3;
  Subject s(options);
  s.Train();
  s.Report(0);
  s.Report(1);

  s.Report(2);

  EXPECT_THAT(All<SendReports>(s.effects).at(0).reports, SizeIs(3));
}

TEST(AgentCoreTest, ReportsGoBeforeAStatusThatChangesThePhase) {
  Subject s;
  s.Train();
  s.Report(0);

  s.Holds(Held(kKey, Phase::kOutputReady, 1));

  ASSERT_THAT(s.effects, SizeIs(2));
  EXPECT_THAT(std::get<SendReports>(s.effects[0]).reports, ElementsAre("0"));
  EXPECT_EQ(std::get<SendStatus>(s.effects[1]).status.held->phase,
            Phase::kOutputReady);
}

TEST(AgentCoreTest, AfterAReconnectExactlyTheUnacknowledgedReportsAreSent) {
  Subject s;
  s.Train();
  for (int step = 0; step < 5; ++step) s.Report(step);
  s.Tick(absl::Seconds(1));
  ASSERT_THAT(All<SendReports>(s.effects), SizeIs(1));
  s.Ack(2);
  s.Closed(absl::UnavailableError("broken"));
  s.Report(5);  // Kept meanwhile.
  s.Tick(absl::Seconds(1));

  s.Welcome();

  const auto sent = All<SendReports>(s.effects);
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].first_sequence, 3);
  EXPECT_THAT(sent[0].reports, ElementsAre("2", "3", "4", "5"));
  EXPECT_EQ(sent[0].dropped_count, 0);
}

TEST(AgentCoreTest, SentReportsAreNotSentAgainOnTheSameStream) {
  Subject s;
  s.Train();
  s.Report(0);
  s.Tick(absl::Seconds(1));
  ASSERT_THAT(All<SendReports>(s.effects), SizeIs(1));

  s.Tick(absl::Seconds(10));

  EXPECT_THAT(All<SendReports>(s.effects), IsEmpty());
}

TEST(AgentCoreTest, TooManyReportsDropTheOldestAndCountThem) {
  AgentOptions options = Options();
  options.report_count_max = 4;
  options.report_batch_max = 2;
  Subject s(options);
  s.Train();
  s.Closed(absl::UnavailableError("away"));
  for (int step = 0; step < 7; ++step) s.Report(step);
  s.Tick(absl::Seconds(1));

  s.Welcome();

  const auto sent = All<SendReports>(s.effects);
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_EQ(sent[0].first_sequence, 4);
  EXPECT_THAT(sent[0].reports, ElementsAre("3", "4"));
  EXPECT_EQ(sent[0].dropped_count, 3);
  EXPECT_EQ(sent[1].first_sequence, 6);
  EXPECT_THAT(sent[1].reports, ElementsAre("5", "6"));
}

// ------------------------------------------------------------------ other

TEST(AgentCoreTest, OptionsOutOfRangeAreRefused) {
  const std::pair<const char*, void (*)(AgentOptions&)> kCases[] = {
      {"worker name", [](AgentOptions& o) { o.worker = {"W 1"}; }},
      {"incarnation", [](AgentOptions& o) { o.incarnation = {0}; }},
      {"report_count_max", [](AgentOptions& o) { o.report_count_max = 1; }},
      {"start_timeout",
       [](AgentOptions& o) { o.start_timeout = absl::ZeroDuration(); }},
      {"abort_timeout",
       [](AgentOptions& o) { o.abort_timeout = -absl::Seconds(1); }},
      {"hello_timeout",
       [](AgentOptions& o) { o.hello_timeout = absl::ZeroDuration(); }},
  };
  for (const auto& [what, spoil] : kCases) {
    AgentOptions options = Options();
    spoil(options);
    const absl::Status status = AgentCore::Create(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << what;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  }
}

// Random events of a small world (trainers that obey, hang and die; streams
// that break; a coordinator that restarts, repeats itself and acknowledges what
// it likes) against what must hold whatever happens.  Then the world behaves,
// and all must be well again.  Replay a failure with TEST_SEED=<n>.
class World {
 public:
  explicit World(uint64_t seed) : rng_(seed) {
    AgentOptions options = Options();
    options.report_count_max = 8;
    options.report_batch_max = 3;
    options.restart_backoff_max = absl::Seconds(2);
    // The random part must not end the daemon.
    options.name_taken_patience = absl::InfiniteDuration();
    core_.emplace(AgentCore::Create(options).value());
  }

  void Begin() {
    AgentEffects effects;
    core_->Start(now_, effects);
    Carry(effects);
  }

  void RandomEvent() {
    now_ = now_ + absl::Milliseconds(Below(Below(8) == 0 ? 9000 : 300));
    AgentEffects effects;
    switch (Below(11)) {
      case 0:
        core_->Tick(now_, effects);
        Carry(effects);
        ASSERT_GT(core_->NextDeadline(), now_);
        return;
      case 1:
        if (stream_open_ && !welcomed_) {
          Welcome(effects);
        }
        break;
      case 2:
        if (stream_open_) {
          stream_open_ = false;
          const absl::StatusCode codes[] = {absl::StatusCode::kUnavailable,
                                            absl::StatusCode::kAborted,
                                            absl::StatusCode::kAlreadyExists};
          core_->OnStreamClosed(now_, absl::Status(codes[Below(3)], ""),
                                effects);
        }
        break;
      case 3:
        if (Below(4) == 0) {  // The coordinator starts again.
          ++coordinator_;
          log_.clear();
          if (stream_open_) {
            stream_open_ = false;
            core_->OnStreamClosed(now_, absl::UnavailableError(""), effects);
          }
        }
        break;
      case 4:
      case 5:
        if (stream_open_ && welcomed_) {
          if (!log_.empty() && Below(4) == 0) {  // A repetition.
            core_->OnCommand(now_, log_[Below(log_.size())], effects);
          } else {
            log_.push_back(
                RandomCommand(static_cast<int64_t>(log_.size()) + 1));
            core_->OnCommand(now_, log_.back(), effects);
          }
        }
        break;
      case 6:
        if (stream_open_ && welcomed_ && last_sent_ > 0) {
          acked_reports_ = std::max(
              acked_reports_, static_cast<int64_t>(Below(
                                  static_cast<uint64_t>(last_sent_) + 1)));
          core_->OnReportsAck(now_, acked_reports_, effects);
        }
        break;
      case 7:
        core_->OnTrainerReady(now_, SomeTrainer(), effects);
        break;
      case 8: {
        std::optional<HeldGeneration> held;
        if (Below(2) == 0) {
          held = Held({{"j"}, static_cast<int64_t>(Below(3)) + 1},
                      Below(2) == 0 ? Phase::kTraining : Phase::kFailed,
                      static_cast<int64_t>(Below(5)));
        }
        core_->OnTrainerHolds(now_, SomeTrainer(), held, effects);
        break;
      }
      case 9: {
        const TrainerId from = SomeTrainer();
        const bool counts = from == alive_ && told_ready_.count(from) > 0;
        if (counts) made_.push_back(std::to_string(made_.size() + 1));
        core_->OnStepReport(now_, from, {{"j"}, 1}, 0,
                            counts ? made_.back() : "stale", effects);
        break;
      }
      case 10:
        if (alive_.value != 0 && (Below(4) == 0 || killed_.count(alive_) > 0)) {
          const TrainerId dead = alive_;
          alive_ = TrainerId{};
          ++deaths_;
          core_->OnTrainerDied(now_, dead, "how", effects);
          ASSERT_FALSE(core_->status().trainer_ready);
        }
        break;
    }
    Carry(effects);
    ASSERT_EQ(core_->status().trainer_death_count, deaths_);
    if (core_->status().trainer_ready) {
      ASSERT_NE(alive_.value, 0);
      ASSERT_EQ(killed_.count(alive_), 0u);
      told_ready_.insert(alive_);
    }
  }

  // Obeys and answers for a while; then everything must be as it should.
  void Calm() {
    for (int i = 0; i < 400; ++i) {
      AgentEffects effects;
      if (alive_.value != 0 && killed_.count(alive_) > 0) {
        const TrainerId dead = alive_;
        alive_ = TrainerId{};
        ++deaths_;
        core_->OnTrainerDied(now_, dead, "how", effects);
      } else if (alive_.value != 0 && !core_->status().trainer_ready) {
        core_->OnTrainerReady(now_, alive_, effects);
      } else if (stream_open_ && !welcomed_) {
        Welcome(effects);
      } else if (stream_open_ && acked_reports_ < last_sent_) {
        acked_reports_ = last_sent_;
        core_->OnReportsAck(now_, acked_reports_, effects);
      } else if (stream_open_ && core_->status().held.has_value() &&
                 core_->status().held->phase != Phase::kAborting) {
        log_.push_back(ReleaseCommand(static_cast<int64_t>(log_.size()) + 1,
                                      core_->status().held->key));
        core_->OnCommand(now_, log_.back(), effects);
      } else {
        now_ = std::max(now_, core_->NextDeadline());
        core_->Tick(now_, effects);
      }
      Carry(effects);
      if (::testing::Test::HasFatalFailure()) return;
    }
    EXPECT_TRUE(core_->connected());
    EXPECT_TRUE(core_->status().trainer_ready);
    EXPECT_FALSE(core_->status().held.has_value());
    EXPECT_EQ(last_status_, core_->status());
    EXPECT_EQ(last_sent_, static_cast<int64_t>(made_.size()));
  }

 private:
  uint64_t Below(uint64_t n) {
    return std::uniform_int_distribution<uint64_t>(0, n - 1)(rng_);
  }

  // Mostly the living one; sometimes one that is dead or never was.
  TrainerId SomeTrainer() {
    if (Below(5) == 0) return {static_cast<int64_t>(Below(4)) + 1};
    return alive_.value != 0 ? alive_ : TrainerId{1};
  }

  Command RandomCommand(int64_t sequence) {
    const GenerationKey key{{"j"}, static_cast<int64_t>(Below(3)) + 1};
    switch (Below(4)) {
      case 0:
        return {sequence, Start{.key = key}};
      case 1:
        return ReleaseCommand(sequence, key);
      case 2:
        return {sequence, CommitOutput{key}};
      default:
        return PrepareCommand(sequence, key);
    }
  }

  void Welcome(AgentEffects& effects) {
    welcomed_ = true;
    core_->OnWelcome(now_, {{coordinator_}, kLease, kBeat}, effects);
  }

  // Carries effects out as the shell would, checking each.
  void Carry(const AgentEffects& effects) {
    for (const AgentEffect& effect : effects) {
      if (const auto* spawn = std::get_if<SpawnTrainer>(&effect)) {
        ASSERT_EQ(alive_.value, 0) << "two trainers at once";
        ASSERT_EQ(spawn->trainer.value, last_spawned_ + 1);
        last_spawned_ = spawn->trainer.value;
        alive_ = spawn->trainer;
      } else if (const auto* kill = std::get_if<KillTrainer>(&effect)) {
        ASSERT_EQ(kill->trainer, alive_);
        ASSERT_TRUE(killed_.insert(kill->trainer).second) << "killed twice";
      } else if (const auto* tell = std::get_if<TellTrainer>(&effect)) {
        ASSERT_EQ(tell->trainer, alive_);
        ASSERT_EQ(killed_.count(alive_), 0u) << "a command to the doomed";
      } else if (std::holds_alternative<OpenStream>(effect)) {
        stream_open_ = true;
        welcomed_ = false;
        hello_sent_ = false;
        next_report_.reset();
      } else if (const auto* hello = std::get_if<SendHello>(&effect)) {
        ASSERT_TRUE(stream_open_ && !hello_sent_);
        hello_sent_ = true;
        ASSERT_GT(hello->hello.stream, last_stream_);
        last_stream_ = hello->hello.stream;
        last_status_ = hello->hello.status;
      } else if (const auto* status = std::get_if<SendStatus>(&effect)) {
        ASSERT_TRUE(stream_open_ && welcomed_) << "status before welcome";
        ASSERT_LE(status->status.applied_sequence,
                  static_cast<int64_t>(log_.size()));
        last_status_ = status->status;
      } else if (const auto* reports = std::get_if<SendReports>(&effect)) {
        ASSERT_TRUE(stream_open_ && welcomed_) << "reports before welcome";
        CheckReports(*reports);
      } else {
        FAIL() << "exit: " << std::get<Exit>(effect).status;
      }
    }
  }

  void CheckReports(const SendReports& sent) {
    ASSERT_FALSE(sent.reports.empty());
    ASSERT_LE(sent.reports.size(), 3u);
    ASSERT_GT(sent.first_sequence, acked_reports_) << "acknowledged before";
    // Without gaps on a stream, but for what was dropped.
    if (next_report_.has_value()) {
      ASSERT_GE(sent.first_sequence, *next_report_);
    }
    const int64_t expected = next_report_.value_or(acked_reports_ + 1);
    ASSERT_LE(sent.first_sequence - expected, sent.dropped_count);
    for (size_t i = 0; i < sent.reports.size(); ++i) {
      const int64_t sequence = sent.first_sequence + static_cast<int64_t>(i);
      ASSERT_EQ(sent.reports[i], std::to_string(sequence));
    }
    next_report_ =
        sent.first_sequence + static_cast<int64_t>(sent.reports.size());
    last_sent_ = std::max(last_sent_, *next_report_ - 1);
  }

  std::mt19937_64 rng_;
  std::optional<AgentCore> core_;
  Instant now_{absl::Hours(1)};

  TrainerId alive_;
  int64_t last_spawned_ = 0;
  int deaths_ = 0;
  std::set<TrainerId> killed_;
  std::set<TrainerId> told_ready_;  // Believed to be ready at some time.

  bool stream_open_ = false;
  bool hello_sent_ = false;
  bool welcomed_ = false;
  int64_t last_stream_ = 0;
  int64_t coordinator_ = 1;
  std::vector<Command> log_;
  WorkerStatus last_status_;

  std::vector<std::string> made_;  // Report i is the text of i + 1.
  std::optional<int64_t> next_report_;
  int64_t last_sent_ = 0;
  int64_t acked_reports_ = 0;
};

TEST(AgentCorePropertyTest, InvariantsHoldUnderRandomEventsAndAllIsWellAfter) {
  const char* env = std::getenv("TEST_SEED");
  const uint64_t first =
      env ? std::strtoull(env, nullptr, 10) : std::random_device{}();
  for (uint64_t seed = first; seed < first + (env ? 1 : 200); ++seed) {
    SCOPED_TRACE("TEST_SEED=" + std::to_string(seed));
    World world(seed);
    world.Begin();
    for (int i = 0; i < 400; ++i) {
      world.RandomEvent();
      if (HasFatalFailure()) return;
    }
    world.Calm();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace lockstep
