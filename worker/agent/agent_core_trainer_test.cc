// The agent's core and its trainer.

#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/agent/agent_core.h"
#include "worker/agent/agent_core_fixture.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

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

// A trainer that hangs in a file system or on its device, which no other rank
// waits for.
TEST(AgentCoreTest, ATrainerThatDoesNotGoOnIsKilledAndItsGenerationFails) {
  Subject s;
  s.Train();

  s.Tick(Options().progress_timeout - absl::Nanoseconds(1));
  EXPECT_THAT(All<KillTrainer>(s.effects), IsEmpty());
  EXPECT_LE(s.core.NextDeadline() - s.now, absl::Nanoseconds(1));
  s.Tick(absl::Nanoseconds(1));
  const auto killed = All<KillTrainer>(s.effects);
  ASSERT_THAT(killed, SizeIs(1));
  EXPECT_THAT(killed[0].reason, HasSubstr("no sign of going on for 10m"));
  s.Tick(absl::Hours(1));
  EXPECT_THAT(All<KillTrainer>(s.effects), IsEmpty());

  s.Died(1, "killed: it hung");
  EXPECT_EQ(s.HeldPhase(), Phase::kFailed);
}

TEST(AgentCoreTest, WhateverATrainerSaysShowsThatItGoesOn) {
  Subject s;
  s.Train();
  const absl::Duration most = Options().progress_timeout - absl::Nanoseconds(1);

  for (int i = 0; i < 3; ++i) {
    s.Tick(most);
    s.Do([&] { s.core.OnTrainerProgress(s.now, {1}, s.effects); });
    EXPECT_THAT(All<KillTrainer>(s.effects), IsEmpty());
    s.Tick(most);
    s.Report(i);
    EXPECT_THAT(All<KillTrainer>(s.effects), IsEmpty());
  }
  s.Tick(most);
  s.Do([&] { s.core.OnTrainerProgress(s.now, {0}, s.effects); });  // Another's.
  s.Tick(absl::Nanoseconds(1));
  EXPECT_THAT(All<KillTrainer>(s.effects), SizeIs(1));
}

TEST(AgentCoreTest, OnlyATrainerThatIsToGoOnMust) {
  Subject s;
  s.Serve();
  s.Tick(absl::Hours(1));
  s.Command(PrepareCommand(1, kKey));
  for (const Phase phase : {Phase::kPreparing, Phase::kJoined,
                            Phase::kConnecting, Phase::kOutputReady}) {
    s.Holds(Held(kKey, phase));
    s.Tick(absl::Hours(1));
    EXPECT_THAT(All<KillTrainer>(s.effects), IsEmpty()) << PhaseName(phase);
  }
  s.Command({2, CommitOutput{kKey}});
  s.Tick(Options().progress_timeout);
  EXPECT_THAT(All<KillTrainer>(s.effects), SizeIs(1));
}

TEST(AgentCoreTest, ACommitThatWasToldIsOfItsGenerationAlone) {
  Subject s;
  s.Serve();
  s.Command(PrepareCommand(1, kKey));
  s.Holds(Held(kKey, Phase::kOutputReady));
  s.Command({2, CommitOutput{kKey}});
  s.Holds(Held(kKey, Phase::kFinished));
  s.Command(ReleaseCommand(3, kKey));
  s.Holds(std::nullopt);

  s.Command(PrepareCommand(4, kNextKey));
  s.Holds(Held(kNextKey, Phase::kOutputReady));
  s.Tick(absl::Hours(1));
  EXPECT_THAT(All<KillTrainer>(s.effects), IsEmpty());
}

}  // namespace
}  // namespace lockstep
