// A generation's life: forming, training, ending, failing, being cut off.

#include "coordinator/core/coordinator_fixture.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

class GenerationsTest : public CoordinatorFixture {
 protected:
  static constexpr auto kJob = Failure::Cause::kJob;
  static constexpr auto kWorker = Failure::Cause::kWorker;
  static constexpr auto kPeer = Failure::Cause::kPeer;

  // All members do what they were told, and say so.
  void AllObey(const JobId& job) {
    for (Player* p : MembersOf(job)) p->Obeys();
  }
};

// ---------------------------------------------------------------- forming

TEST_F(GenerationsTest, PrepareGivesEachWorkerItsRankAndTheSpec) {
  Player& a = Attach("a");
  Player& b = Attach("b");

  const JobId job = Submit({.min_workers = 2});

  EXPECT_EQ(Job(job).state, JobState::kForming);
  EXPECT_EQ(Job(job).generation, 1);
  EXPECT_EQ(Job(job).numeric_class, "cpu/x");
  EXPECT_THAT(Job(job).members, ElementsAre(a.id(), b.id()));
  for (Player* p : {&a, &b}) {
    const Prepare& prepare = p->last<Prepare>();
    EXPECT_EQ(prepare.key, KeyOfJob(job));
    EXPECT_EQ(prepare.rank, p == &a ? 0 : 1);
    EXPECT_THAT(prepare.workers, ElementsAre(a.id(), b.id()));
    EXPECT_EQ(*prepare.spec, *Job(job).spec);
    EXPECT_EQ(p->view().assigned, KeyOfJob(job));
  }
}

TEST_F(GenerationsTest, NobodyStartsUntilAllHaveJoined) {
  Player& a = Attach("a");
  Player& b = Attach("b");
  Player& c = Attach("c");
  const JobId job = Submit({.min_workers = 3});

  a.Obeys().Joins();
  b.Obeys().Joins();
  c.Obeys();
  EXPECT_THAT(a.commands(), ElementsAre("Prepare 1"));

  c.Joins();
  for (Player* p : {&a, &b, &c}) {
    EXPECT_THAT(p->commands(), ElementsAre("Prepare 1", "Start 1"));
  }
  // Once, whatever is said again.
  a.Beat();
  EXPECT_THAT(a.commands(), ElementsAre("Prepare 1", "Start 1"));
  EXPECT_EQ(Job(job).state, JobState::kForming);
}

TEST_F(GenerationsTest, StartCarriesTheWholeAssignment) {
  Player& a = Attach("a");
  Player& b = Attach("b");
  Player& c = Attach("c");
  const JobId job = Submit({.min_workers = 3, .micro_batches = 8});
  AllJoin(job);

  // To rank i from rank j: what j said for i; its own is empty.
  EXPECT_THAT(a.last<Start>().peer_addresses, ElementsAre("", "b>0", "c>0"));
  EXPECT_THAT(b.last<Start>().peer_addresses, ElementsAre("a>1", "", "c>1"));
  EXPECT_THAT(c.last<Start>().peer_addresses, ElementsAre("a>2", "b>2", ""));
  for (Player* p : {&a, &b, &c}) {
    const Start& start = p->last<Start>();
    EXPECT_EQ(start.key, KeyOfJob(job));
    EXPECT_EQ(start.nonce, "nonce/1");
    EXPECT_EQ(start.first_step, 0);
    EXPECT_EQ(start.plan_version, 1);
    EXPECT_THAT(start.micro_batches,
                ElementsAre(MicroBatchRange{0, 3}, MicroBatchRange{3, 3},
                            MicroBatchRange{6, 2}));
  }
}

// Begun where rank 0 can; whose the steps before are, it says.
TEST_F(GenerationsTest, TheLedgerHasEveryStepOnce) {
  Player& a = Attach("a");
  Player& b = Attach("b");
  const JobId job = Submit({.min_workers = 2, .micro_batches = 4});
  const LedgerRow before{1, 1, 0, 7, {{"x"}}, {{0, 4}}};
  a.Obeys();
  a.status.held->first_step = 7;
  a.status.held->ledger = {before};
  a.Joins();
  b.Obeys().Joins();
  EXPECT_EQ(a.last<Start>().first_step, 7);
  EXPECT_EQ(b.last<Start>().first_step, 7);
  EXPECT_TRUE(Job(job).ledger.empty());

  for (Player* p : {&a, &b}) {
    p->status.held->committed_step_count = 7;
    p->Is(Phase::kTraining);
  }
  LedgerRow own{1, 1, 7, 7, {{"a"}, {"b"}}, {{0, 2}, {2, 2}}};
  EXPECT_EQ(Job(job).ledger, (std::vector<LedgerRow>{before, own}));

  b.status.held->committed_step_count = 9;
  b.Beat();
  own.end_step = 9;
  EXPECT_EQ(Job(job).ledger, (std::vector<LedgerRow>{before, own}));
}

TEST_F(GenerationsTest, ARankThatGaveTooFewAddressesIsNoneOfOurDeath) {
  Player& a = Attach("a");
  Player& b = Attach("b");
  const JobId job = Submit({.min_workers = 2});
  a.Obeys();
  a.status.held->addresses.clear();
  a.Is(Phase::kJoined);
  b.Obeys().Joins();

  EXPECT_THAT(b.last<Start>().peer_addresses, ElementsAre("", ""));
  EXPECT_EQ(Job(job).state, JobState::kForming);
}

TEST_F(GenerationsTest, TheReasonNamesWhoIsBehindAndWhatTheyDo) {
  Player& a = Attach("a");
  Player& b = Attach("b");
  const JobId job = Submit({.min_workers = 2});
  EXPECT_EQ(Reason(job), "0/2 prepared, waiting for a, b");

  a.Obeys().Joins();
  b.Receives();
  b.status.held->detail = "reads /data/x";
  b.Beat();
  EXPECT_EQ(Reason(job), "1/2 prepared, waiting for b (reads /data/x)");

  b.status.held->detail = "";
  b.Joins();
  a.Obeys();
  b.Obeys().Is(Phase::kTraining);
  EXPECT_EQ(Reason(job), "1/2 connected, waiting for a");

  a.Is(Phase::kTraining);
  EXPECT_EQ(Reason(job), "");
}

TEST_F(GenerationsTest, OfManyWhoAreBehindSomeAreNamed) {
  for (int i = 10; i < 22; ++i) Attach("w" + std::to_string(i));
  const JobId job = Submit({.min_workers = 12});
  EXPECT_EQ(Reason(job),
            "0/12 prepared, waiting for w10, w11, w12, w13, w14, w15, w16, "
            "w17 and 4 more");
}

TEST_F(GenerationsTest, TheJobRunsWhenAllTrain) {
  Player& a = Attach("a");
  Player& b = Attach("b");
  const JobId job = Submit({.min_workers = 2});
  AllJoin(job);
  AllObey(job);
  a.Is(Phase::kTraining);
  EXPECT_EQ(Job(job).state, JobState::kForming);

  Pass(absl::Seconds(1));
  b.status.held->max_steps = 100;
  b.Is(Phase::kTraining);

  EXPECT_EQ(Job(job).state, JobState::kRunning);
  EXPECT_EQ(shell().store().at(job).state, JobState::kRunning);
  EXPECT_EQ(Job(job).start_time, now().wall);
  EXPECT_EQ(Job(job).max_steps, 100);
}

TEST_F(GenerationsTest, TheTimeOfFormingIsExactAndStartsAnewWithStart) {
  Player& a = Attach("a");
  Player& b = Attach("b");
  const JobId job = Submit({.min_workers = 2});
  a.Obeys();
  b.Obeys().Joins();
  const absl::Duration timeout = options().forming_timeout;
  const auto pass_beating = [&](absl::Duration duration) {
    for (; duration > absl::Seconds(2); duration -= absl::Seconds(2)) {
      Pass(absl::Seconds(2));
      a.Beat();
      b.Beat();
    }
    Pass(duration);
    a.Beat();
    b.Beat();
  };

  pass_beating(timeout - kInstant);
  ASSERT_EQ(Job(job).state, JobState::kForming);
  a.Joins();
  pass_beating(timeout - kInstant);
  EXPECT_EQ(Job(job).state, JobState::kForming);
  EXPECT_EQ(core().NextDeadline(), now().steady + kInstant);
  Pass(kInstant);
  Tick();

  EXPECT_EQ(Job(job).state, JobState::kRecovering);
  EXPECT_THAT(a.last<Release>().reason, HasSubstr("forming took longer"));
}

TEST_F(GenerationsTest, WhoIsBehindInPreparingIsHeldBack) {
  CoordinatorOptions quick = options();
  quick.forming_timeout = absl::Seconds(2);
  Restart(quick);
  Player& a = Attach("a");
  Player& b = Attach("b");
  Player& c = Attach("c");
  const JobId job = Submit({.min_workers = 3});
  a.Obeys().Joins();
  c.Obeys().Joins();
  b.Obeys();

  Pass(absl::Seconds(2));
  Tick();

  EXPECT_THAT(Reason(job), HasSubstr("worker b: forming took longer than 2s: "
                                     "2/3 prepared, waiting for b"));
  AllObey(job);
  EXPECT_THAT(Reason(job), HasSubstr("b (held back after a failure)"));
  EXPECT_THAT(Reason(job), Not(HasSubstr("c (held")));
}

TEST_F(GenerationsTest, WhoIsBehindInConnectingIsHeldBack) {
  CoordinatorOptions quick = options();
  quick.forming_timeout = absl::Seconds(2);
  Restart(quick);
  Player& a = Attach("a");
  Player& b = Attach("b");
  Player& c = Attach("c");
  const JobId job = Submit({.min_workers = 3});
  AllJoin(job);
  AllObey(job);
  a.Is(Phase::kTraining);
  c.Is(Phase::kTraining);

  Pass(absl::Seconds(2));
  Tick();

  EXPECT_THAT(Reason(job), HasSubstr("worker b: forming took longer than 2s: "
                                     "2/3 connected, waiting for b"));
  AllObey(job);
  EXPECT_THAT(Reason(job), HasSubstr("b (held back after a failure)"));
  (void)b;
}

// ------------------------------------------------------------- to the end

TEST_F(GenerationsTest, OutputIsCommittedOnceWhenAllAreReady) {
  Player& a = Attach("a");
  Player& b = Attach("b");
  const JobId job = Submit({.min_workers = 2});
  AllTrain(job);
  a.Is(Phase::kOutputReady);
  EXPECT_THAT(a.commands(), ElementsAre("Prepare 1", "Start 1"));

  b.Is(Phase::kOutputReady);
  b.Beat();

  EXPECT_THAT(a.commands(),
              ElementsAre("Prepare 1", "Start 1", "CommitOutput 1"));
  EXPECT_THAT(b.commands(), ElementsAre("Prepare 1", "Start 1"));
  EXPECT_EQ(Job(job).state, JobState::kRunning);

  Pass(absl::Seconds(1));
  a.Obeys();
  EXPECT_EQ(Job(job).state, JobState::kCompleted);
  EXPECT_EQ(Job(job).end_time, now().wall);
  EXPECT_EQ(Reason(job), "");
  AllObey(job);
  EXPECT_TRUE(a.free() && b.free());
  EXPECT_FALSE(a.holds() || b.holds());
}

TEST_F(GenerationsTest, OnlyRankZeroCanFinishAJob) {
  Attach("a");
  Player& b = Attach("b");
  const JobId job = Submit({.min_workers = 2});
  AllTrain(job);

  b.Is(Phase::kFinished);

  EXPECT_EQ(Job(job).state, JobState::kRunning);
}

// The output was committed by an earlier generation whose word got lost.
TEST_F(GenerationsTest, RankZeroMayFindTheOutputFinishedWhenItPrepares) {
  Player& a = Attach("a");
  Attach("b");
  const JobId job = Submit({.min_workers = 2});
  a.Obeys();

  a.Is(Phase::kFinished);

  EXPECT_EQ(Job(job).state, JobState::kCompleted);
}

TEST_F(GenerationsTest, ProgressIsTheMostThatAnyRankReported) {
  Player& a = Attach("a");
  Player& b = Attach("b");
  const JobId job = Submit({.min_workers = 2});
  AllTrain(job);

  a.Commits(3);
  b.Commits(2);
  EXPECT_EQ(Job(job).committed_step_count, 3);
  b.status.held->committed_step_count = 5;
  b.Beat();
  EXPECT_EQ(Job(job).committed_step_count, 5);
  EXPECT_EQ(Job(job).best_step_count, 5);
}

TEST_F(GenerationsTest, WhatTrainersWaitForIsShownWhileTheJobRuns) {
  Player& a = Attach("a");
  Attach("b");
  const JobId job = Submit({.min_workers = 2});
  AllTrain(job);

  a.status.held->detail = "output: No space left on device; trying again";
  a.Beat();
  EXPECT_EQ(Reason(job),
            "worker a: output: No space left on device; trying again");
  a.status.held->detail = "";
  a.Beat();
  EXPECT_EQ(Reason(job), "");
}

// ---------------------------------------------------------------- failing

TEST_F(GenerationsTest, AFailureOfTheJobsOwnEndsIt) {
  Player& a = Attach("a");
  Player& b = Attach("b");
  const JobId job = Submit({.min_workers = 2});
  a.Obeys();
  b.Obeys().Fails(kJob, "no such file: /data/x");

  EXPECT_EQ(Job(job).state, JobState::kFailed);
  EXPECT_EQ(Reason(job), "worker b: no such file: /data/x");
  EXPECT_EQ(Job(job).end_time, now().wall);
  AllObey(job);
  EXPECT_TRUE(a.free() && b.free());
  // It was not the worker's fault.
  EXPECT_EQ(Job(Submit({.min_workers = 2})).state, JobState::kForming);
}

TEST_F(GenerationsTest, AFailureOfTheJobsOwnCountsEvenAfterABrokenConnection) {
  Player& a = Attach("a");
  Player& b = Attach("b");
  const JobId job = Submit({.min_workers = 2});
  AllTrain(job);
  a.Fails(kPeer, "lost rank 1");
  ASSERT_EQ(Job(job).state, JobState::kRecovering);

  b.Fails(kJob, "step 7: loss is not finite");

  EXPECT_EQ(Job(job).state, JobState::kFailed);
  EXPECT_EQ(Reason(job), "worker b: step 7: loss is not finite");
  AllObey(job);
  EXPECT_TRUE(a.free() && b.free());
}

TEST_F(GenerationsTest, AFailedGenerationIsFollowedByTheNextWhenAllLetGo) {
  Player& a = Attach("a");
  Player& b = Attach("b");
  const JobId job = Submit({.min_workers = 2});
  AllTrain(job);

  a.Fails(kPeer, "lost rank 1");

  EXPECT_EQ(Job(job).state, JobState::kRecovering);
  EXPECT_EQ(shell().store().at(job).state, JobState::kRecovering);
  EXPECT_EQ(Job(job).failure_count, 1);
  EXPECT_THAT(Reason(job),
              AllOf(HasSubstr("worker a: lost rank 1"),
                    HasSubstr("waiting for the workers of generation 1")));
  a.Obeys();
  EXPECT_EQ(Job(job).state, JobState::kRecovering);
  b.Obeys();

  EXPECT_EQ(Job(job).state, JobState::kForming);
  EXPECT_EQ(Job(job).generation, 2);
  EXPECT_EQ(Job(job).committed_step_count, 0);
  AllReady(job);
  a.Obeys();
  EXPECT_EQ(Job(job).state, JobState::kCompleted);
}

TEST_F(GenerationsTest, ABrokenConnectionIsNobodysFault) {
  Attach("a").id();
  const JobId job = Submit({});
  AllTrain(job);
  player(WorkerId{"a"}).Fails(kPeer, "connection reset").Obeys();

  // At once, without back-off.
  EXPECT_EQ(Job(job).state, JobState::kForming);
}

TEST_F(GenerationsTest, AFailureWithoutAWordIsTheWorkersFault) {
  Player& a = Attach("a");
  const JobId job = Submit({});
  AllTrain(job);

  a.status.held->failure.reset();
  a.Is(Phase::kFailed);

  EXPECT_EQ(Job(job).state, JobState::kRecovering);
  EXPECT_THAT(Reason(job), HasSubstr("worker a: "));
}

TEST_F(GenerationsTest, AWorkerAtFaultIsHeldBackForLongerEachTime) {
  Player& a = Attach("a");
  const JobId job = Submit({.failures_max = 100});
  // 1, 2, 4, 8 s, and then the maximum of 10 s.
  for (const int seconds : {1, 2, 4, 8, 10, 10}) {
    a.Obeys().Fails(kWorker, "out of memory").Obeys();
    EXPECT_THAT(Reason(job), AllOf(HasSubstr("worker a: out of memory"),
                                   HasSubstr("a (held back after a failure)")));
    const int64_t generation = Job(job).generation;
    const Instant until = now().steady + absl::Seconds(seconds);
    while (now().steady + absl::Seconds(3) < until) {
      Pass(absl::Seconds(3));
      a.Beat();
    }
    Pass(until - now().steady - kInstant);
    a.Beat();
    ASSERT_EQ(Job(job).state, JobState::kRecovering) << seconds;
    EXPECT_EQ(core().NextDeadline(), until);

    Pass(kInstant);
    Tick();
    ASSERT_EQ(Job(job).generation, generation + 1) << seconds;
  }
}

TEST_F(GenerationsTest, AWorkerAtFaultIsHeldBackThoughOthersWereHeardFirst) {
  Attach("a");
  Player& b = Attach("b");
  const JobId job = Submit({.min_workers = 2});
  AllTrain(job);
  player(WorkerId{"a"}).Fails(kPeer, "lost rank 1");

  b.Fails(kWorker, "its trainer died: signal 9");
  b.Beat();  // Says it again: still one fault.
  AllObey(job);

  EXPECT_EQ(Job(job).failure_count, 1);
  EXPECT_THAT(Reason(job), AllOf(HasSubstr("signal 9"),
                                 HasSubstr("b (held back after a failure)")));
  Pass(options().worker_backoff);
  Tick();
  EXPECT_EQ(Job(job).state, JobState::kForming);
}

TEST_F(GenerationsTest, AStepThatWasCommittedEndsTheRowOfAWorkersFaults) {
  Player& a = Attach("a");
  const JobId job = Submit({.failures_max = 100});
  for (int i = 0; i < 3; ++i) {
    AllTrain(job);
    a.Commits(1).Fails(kWorker, "out of memory").Obeys();
    Pass(options().worker_backoff);
    Tick();
    ASSERT_EQ(Job(job).generation, i + 2);
  }
}

TEST_F(GenerationsTest, TooManyFailuresWithoutANewStepFailTheJob) {
  Player& a = Attach("a");
  const JobId job = Submit({.failures_max = 2});
  for (int i = 0; i < 2; ++i) {
    AllTrain(job);
    a.Fails(kPeer, "connection reset").Obeys();
    ASSERT_EQ(Job(job).state, JobState::kForming);
  }
  AllTrain(job);
  a.Fails(kPeer, "connection reset");
  EXPECT_EQ(Job(job).state, JobState::kRecovering);
  EXPECT_THAT(Reason(job), HasSubstr("to let go"));

  a.Obeys();
  EXPECT_TRUE(a.free());
  EXPECT_EQ(Job(job).state, JobState::kFailed);
  EXPECT_EQ(Reason(job),
            "gave up after 3 failures without a new step; the last: "
            "worker a: connection reset");
}

TEST_F(GenerationsTest, AJobThatGivesUpNamesTheCulpritAndNotWhoSawItFirst) {
  Player& a = Attach("a");
  Player& b = Attach("b");
  const std::string gave_up =
      "gave up after 1 failure without a new step; the last: ";
  const JobId died = Submit({.min_workers = 2, .failures_max = 0});
  AllTrain(died);
  a.Fails(kPeer, "lost rank 1");
  b.Fails(kWorker, "its trainer died: signal 9");
  AllObey(died);
  EXPECT_EQ(Reason(died), gave_up + "worker b: its trainer died: signal 9");
  Pass(options().worker_backoff);
  Tick();

  const JobId vanished = Submit({.min_workers = 2, .failures_max = 0});
  AllTrain(vanished);
  a.Fails(kPeer, "lost rank 1");
  b.Breaks();
  a.Obeys();
  EXPECT_EQ(Job(vanished).state, JobState::kRecovering);
  Pass(options().lease);
  a.Beat();
  Tick();
  EXPECT_THAT(Reason(vanished), StartsWith(gave_up + "worker b: silent for "));
}

TEST_F(GenerationsTest, TheCulpritOfOneGenerationIsNotThatOfTheNext) {
  Player& a = Attach("a");
  Player& b = Attach("b");
  const JobId job = Submit({.min_workers = 2});
  AllTrain(job);
  a.Fails(kWorker, "out of memory");
  AllObey(job);
  Pass(options().worker_backoff);
  Tick();
  AllTrain(job);

  a.Fails(kPeer, "lost rank 1");
  b.Fails(kWorker, "its trainer died");
  EXPECT_THAT(Reason(job), StartsWith("worker b: its trainer died"));
}

TEST_F(GenerationsTest, AJobThatGivesUpHoldsUpNobody) {
  Player& a = Attach("a");
  Attach("b");
  Attach("c");
  const JobId job =
      Submit({.min_workers = 2, .max_workers = 2, .failures_max = 0});
  AllTrain(job);
  a.Fails(kPeer, "lost rank 1");
  ASSERT_EQ(Job(job).state, JobState::kRecovering);
  // c is free, and nobody waits for it.
  const JobId other = Submit({});
  EXPECT_EQ(Job(other).state, JobState::kForming);
}

TEST_F(GenerationsTest, OnlyAStepThatIsNewResetsTheCount) {
  Player& a = Attach("a");
  const JobId job = Submit({});
  AllTrain(job);
  a.Commits(10).Fails(kPeer, "x").Obeys();
  ASSERT_EQ(Job(job).failure_count, 1);
  AllTrain(job);

  a.Commits(10);  // Steps 0 to 9 once more.
  EXPECT_EQ(Job(job).failure_count, 1);
  a.Commits(11);
  EXPECT_EQ(Job(job).failure_count, 0);
  a.Fails(kPeer, "x");
  EXPECT_EQ(Job(job).failure_count, 1);
}

TEST_F(GenerationsTest, AJobWithoutPatienceFailsAtTheFirstFailure) {
  Player& a = Attach("a");
  const JobId job = Submit({.failures_max = 0});
  a.Obeys().Fails(kWorker, "out of memory").Obeys();
  EXPECT_EQ(Job(job).state, JobState::kFailed);
}

TEST_F(GenerationsTest, AWorkerThatReportsAnothersRankLosesItsPlace) {
  Player& a = Attach("a");
  Player& b = Attach("b");
  const JobId job = Submit({.min_workers = 2});
  for (const int rank : {0, -1, 2}) {
    AllJoin(job);
    ASSERT_EQ(Job(job).state, JobState::kForming);
    b.status.held->rank = rank;
    b.Beat();
    EXPECT_EQ(Job(job).state, JobState::kRecovering);
    EXPECT_THAT(Reason(job), HasSubstr("worker b: holds rank"));
    AllObey(job);
    Pass(absl::Seconds(3));
    a.Beat();
    b.Beat();
    Pass(absl::Seconds(3));
    a.Beat();
  }
}

TEST_F(GenerationsTest, AWorkerThatNoLongerHoldsItsPlaceLosesIt) {
  Player& a = Attach("a");
  const JobId job = Submit({});
  AllTrain(job);

  a.status.held.reset();
  a.status.last_trainer_death = "signal 11";
  a.Beat();

  EXPECT_EQ(Job(job).state, JobState::kRecovering);
  EXPECT_THAT(Reason(job),
              HasSubstr("no longer holds its place in the "
                        "generation; its last trainer: signal 11"));
}

// It was sent while the Prepare was on its way.
TEST_F(GenerationsTest, AStatusOlderThanThePrepareDoesNotLoseThePlace) {
  Player& a = Attach("a");
  const JobId job = Submit({});

  a.Beat();

  EXPECT_EQ(Job(job).state, JobState::kForming);
}

TEST_F(GenerationsTest, AWorkerThatCouldNotTakeItsPlaceLosesIt) {
  Player& a = Attach("a");
  const JobId job = Submit({});

  // Its trainer died before the Prepare came: applied, and nothing held.
  a.status.applied_sequence = 1;
  a.status.trainer_ready = false;
  a.Beat();

  EXPECT_EQ(Job(job).state, JobState::kRecovering);
  // It acknowledges the Release, gets a trainer, and has another try.
  a.Receives();
  a.status.trainer_ready = true;
  a.Beat();
  EXPECT_TRUE(a.free());
  PassTicking(options().worker_backoff);
  EXPECT_EQ(Job(job).generation, 2);
}

TEST_F(GenerationsTest, ALostMemberEndsTheGenerationAndAnotherTakesItsPlace) {
  Player& a = Attach("a");
  Player& b = Attach("b");
  const JobId job = Submit({.min_workers = 2});
  AllTrain(job);
  Player& c = Attach("c");

  Pass(options().lease - kInstant);
  a.Beat();
  c.Beat();
  EXPECT_EQ(Job(job).state, JobState::kRunning);
  Pass(kInstant);
  Tick();

  EXPECT_EQ(b.contact(), Contact::kLost);
  EXPECT_THAT(Reason(job), HasSubstr("worker b: silent for 4s"));
  EXPECT_EQ(a.commands().back(), "Release 1");
  a.Obeys();
  EXPECT_THAT(Job(job).members, ElementsAre(a.id(), c.id()));
  EXPECT_EQ(Job(job).generation, 2);
}

TEST_F(GenerationsTest, HoldersOfWhatIsOverAreToldToLetGo) {
  Player& a = Attach("a");
  const JobId job = Submit({});
  AllTrain(job);
  Player& b = Introduce("b");
  // Of a job of another time, of an earlier generation, and of another's place.
  for (const GenerationKey& key :
       {GenerationKey{JobId{"unheard-of"}, 3}, GenerationKey{job, 0},
        GenerationKey{job, 2}, KeyOfJob(job)}) {
    b.StartsAnew();
    b.status.held.emplace();
    b.status.held->key = key;
    b.Hello();
    EXPECT_EQ(b.commands().size(), 1u) << key;
    EXPECT_EQ(b.last<Release>().key, key);
    b.Beat();
    EXPECT_EQ(b.commands().size(), 1u) << "once is enough";
    EXPECT_EQ(Job(Submit({})).state, JobState::kQueued);
    b.Breaks();
  }
  EXPECT_EQ(Job(job).state, JobState::kRunning);
  (void)a;
}

TEST_F(GenerationsTest, AWorkerThatIsLettingGoIsNotToldAgain) {
  Player& a = Introduce("a");
  a.status.held.emplace();
  a.status.held->key = {JobId{"unheard-of"}, 3};
  a.status.held->phase = Phase::kAborting;
  a.Hello();
  EXPECT_THAT(a.commands(), IsEmpty());
}

TEST_F(GenerationsTest, ReportsOfAnEarlierGenerationDoNotCount) {
  Player& a = Attach("a");
  const JobId job = Submit({});
  AllTrain(job);
  const GenerationKey old = KeyOfJob(job);
  a.Fails(kPeer, "x").Obeys();
  ASSERT_EQ(Job(job).generation, 2);
  EXPECT_EQ(core().RankOf(a.session(), old), std::nullopt);

  Effects late;
  core().OnStepsCommitted(now(), a.session(), old, 50, late);

  EXPECT_EQ(core().FindJob(job)->committed_step_count, 0);
}

TEST_F(GenerationsTest, StepReportsAreBelievedOfMembersOnly) {
  Player& a = Attach("a");
  Player& b = Attach("b");
  const JobId job = Submit({.min_workers = 2});
  Player& c = Attach("c");

  EXPECT_EQ(core().RankOf(a.session(), KeyOfJob(job)), 0);
  EXPECT_EQ(core().RankOf(b.session(), KeyOfJob(job)), 1);
  EXPECT_EQ(core().RankOf(c.session(), KeyOfJob(job)), std::nullopt);
  EXPECT_EQ(core().RankOf(a.session(), {JobId{"x"}, 1}), std::nullopt);
  EXPECT_EQ(core().RankOf(a.session(), {job, 2}), std::nullopt);
  EXPECT_EQ(core().RankOf(SessionId{999}, KeyOfJob(job)), std::nullopt);

  Effects effects;
  core().OnStepsCommitted(now(), c.session(), KeyOfJob(job), 9, effects);
  EXPECT_EQ(core().FindJob(job)->committed_step_count, 0);
}

// ---------------------------------------------------------------- cut off

class CutOffTest : public GenerationsTest {
 protected:
  // b falls silent while both train; a goes on talking.
  JobId TrainWithSilentB() {
    a_ = &Attach("a");
    b_ = &Attach("b");
    const JobId job = Submit({.min_workers = 2, .failures_max = 100});
    AllTrain(job);
    return job;
  }
  void PassWithAOnly(absl::Duration duration) {
    for (; duration > absl::Seconds(3); duration -= absl::Seconds(3)) {
      Pass(absl::Seconds(3));
      a_->Beat();
    }
    Pass(duration);
    a_->Beat();
  }
  Player* a_ = nullptr;
  Player* b_ = nullptr;
};

TEST_F(CutOffTest, ASilentWorkerWhoseGenerationCommitsIsLeftToTrain) {
  const JobId job = TrainWithSilentB();
  Pass(absl::Seconds(1));
  a_->Commits(1);
  const Instant commit = now().steady;

  PassWithAOnly(options().lease - absl::Seconds(1));

  EXPECT_EQ(b_->contact(), Contact::kCutOff);
  EXPECT_THAT(b_->view().reason, HasSubstr("its generation commits"));
  EXPECT_TRUE(b_->stream().closed.has_value());
  EXPECT_EQ(Job(job).state, JobState::kRunning);

  // Until the bound of a step has passed without another commit.
  PassWithAOnly(commit + options().step_bound - now().steady - kInstant);
  EXPECT_EQ(b_->contact(), Contact::kCutOff);
  Pass(kInstant);
  a_->Beat();
  EXPECT_EQ(b_->contact(), Contact::kLost);
  EXPECT_EQ(Job(job).state, JobState::kRecovering);
}

TEST_F(CutOffTest, EveryCommitExtendsIt) {
  const JobId job = TrainWithSilentB();
  for (int i = 1; i < 20; ++i) {
    Pass(absl::Seconds(3));
    a_->Commits(i);
  }
  EXPECT_EQ(b_->contact(), Contact::kCutOff);
  EXPECT_EQ(Job(job).state, JobState::kRunning);
  // Saying an old one again does not.
  PassWithAOnly(10 * absl::Seconds(3) - kInstant);
  a_->Commits(19);
  EXPECT_EQ(b_->contact(), Contact::kCutOff);
  Pass(kInstant);
  Tick();
  EXPECT_EQ(b_->contact(), Contact::kLost);
}

TEST_F(CutOffTest, OfAGenerationOfShortStepsACommitProvesLittle) {
  const JobId job = TrainWithSilentB();
  for (int i = 1; i < 5; ++i) {
    Pass(absl::Milliseconds(200));
    a_->Commits(i);
  }
  // Ten steps would be less than the lease.
  PassWithAOnly(options().lease - kInstant);
  EXPECT_EQ(b_->contact(), Contact::kCutOff);
  Pass(kInstant);
  Tick();
  EXPECT_EQ(b_->contact(), Contact::kLost);
  EXPECT_EQ(Job(job).state, JobState::kRecovering);
}

TEST_F(CutOffTest, OfLongStepsTheBoundIsTheLongest) {
  TrainWithSilentB();
  Pass(absl::Seconds(1));
  a_->Commits(1);
  PassWithAOnly(options().step_bound / 2);
  a_->Commits(2);
  PassWithAOnly(options().step_bound - kInstant);
  EXPECT_EQ(b_->contact(), Contact::kCutOff);
  Pass(kInstant);
  Tick();
  EXPECT_EQ(b_->contact(), Contact::kLost);
}

TEST_F(CutOffTest, ACommitFromBeforeItFellSilentProvesNothing) {
  const JobId job = TrainWithSilentB();
  Pass(absl::Seconds(1));
  a_->Commits(1);
  Pass(absl::Seconds(1));
  b_->Beat();

  PassWithAOnly(options().lease);

  EXPECT_EQ(b_->contact(), Contact::kLost);
  EXPECT_EQ(Job(job).state, JobState::kRecovering);
}

TEST_F(CutOffTest, ThatAllAreConnectedProvesNothing) {
  Player& a = Attach("a");
  Player& b = Attach("b");
  const JobId job = Submit({.min_workers = 2});
  AllJoin(job);
  AllObey(job);
  b.Is(Phase::kTraining);
  Pass(absl::Seconds(3));
  a.Is(Phase::kTraining);
  ASSERT_EQ(Job(job).state, JobState::kRunning);

  Pass(absl::Seconds(1));
  Tick();

  EXPECT_EQ(b.contact(), Contact::kLost);
}

TEST_F(CutOffTest, AWorkerWithoutAPlaceIsNeverCutOff) {
  const JobId job = TrainWithSilentB();
  Player& c = Attach("c");
  Pass(absl::Seconds(1));
  a_->Commits(1);
  PassWithAOnly(options().lease);
  EXPECT_EQ(c.contact(), Contact::kLost);
  EXPECT_EQ(Job(job).state, JobState::kRunning);
}

TEST_F(CutOffTest, AHelloBringsItBack) {
  const JobId job = TrainWithSilentB();
  Pass(absl::Seconds(1));
  a_->Commits(1);
  PassWithAOnly(options().lease);
  ASSERT_EQ(b_->contact(), Contact::kCutOff);

  b_->Hello();

  EXPECT_EQ(b_->contact(), Contact::kAttached);
  EXPECT_EQ(b_->view().reason, "");
  EXPECT_EQ(Job(job).state, JobState::kRunning);
  EXPECT_EQ(Job(job).generation, 1);
  Pass(options().lease - kInstant);
  Tick();
  EXPECT_EQ(b_->contact(), Contact::kAttached);
}

TEST_F(CutOffTest, ANewDaemonUnderItsNameEndsTheGeneration) {
  const JobId job = TrainWithSilentB();
  Pass(absl::Seconds(1));
  a_->Commits(1);
  PassWithAOnly(options().lease);
  ASSERT_EQ(b_->contact(), Contact::kCutOff);

  b_->StartsAnew().Hello();

  EXPECT_EQ(Job(job).state, JobState::kRecovering);
  EXPECT_THAT(Reason(job), HasSubstr("its daemon was restarted"));
}

// With its generation ends the evidence: a machine that lost its power costs
// the lease, and not the bound of a step.
TEST_F(CutOffTest, ItIsLostAsSoonAsItsGenerationEnds) {
  const JobId job = TrainWithSilentB();
  Player& c = Attach("c");
  Player& d = Attach("d");
  const JobId other = Submit({.min_workers = 2});
  ASSERT_THAT(Job(other).members, ElementsAre(c.id(), d.id()));
  Pass(absl::Seconds(1));
  a_->Commits(1);
  ASSERT_TRUE(Cancel(other).ok());
  c.Obeys();
  Pass(absl::Seconds(3));
  a_->Beat();
  ASSERT_EQ(b_->contact(), Contact::kCutOff);
  c.Hello();

  a_->Fails(kPeer, "lost rank 1").Obeys();

  EXPECT_EQ(b_->contact(), Contact::kLost);
  EXPECT_EQ(b_->view().reason, "silent for 4s");
  EXPECT_EQ(Job(job).state, JobState::kForming);
  EXPECT_THAT(Job(job).members, ElementsAre(a_->id(), c.id()));
  // And it is forgotten no sooner than any.
  Tick();
  EXPECT_TRUE(b_->known());
}

TEST_F(CutOffTest, SeveralThatAreOverdueAtOnceAreAllLost) {
  Player& a = Attach("a");
  Player& b = Attach("b");
  Player& c = Attach("c");
  const JobId job = Submit({.min_workers = 3});
  AllTrain(job);
  Pass(absl::Seconds(1));
  c.Commits(1);
  for (int i = 0; i < 2; ++i) {
    Pass(absl::Seconds(3));
    c.Beat();
  }
  ASSERT_EQ(a.contact(), Contact::kCutOff);
  ASSERT_EQ(b.contact(), Contact::kCutOff);

  Pass(options().step_bound);
  Tick();

  EXPECT_EQ(a.contact(), Contact::kLost);
  EXPECT_EQ(b.contact(), Contact::kLost);
  EXPECT_EQ(Job(job).state, JobState::kRecovering);
  EXPECT_EQ(Job(job).failure_count, 1);
}

}  // namespace
}  // namespace lockstep
