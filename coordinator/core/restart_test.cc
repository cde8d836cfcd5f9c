// The coordinator dies and starts again, at every stage of a job.

#include "coordinator/core/coordinator_fixture.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RestartTest : public CoordinatorFixture {
 protected:
  void SetUp() override {
    a_ = &Attach("a");
    b_ = &Attach("b");
    job_ = Submit({.min_workers = 2});
  }
  void BothHello() {
    a_->Hello();
    b_->Hello();
  }
  void ExpectCompletes() {
    for (Player* p : {a_, b_}) p->Obeys();
    EXPECT_EQ(Job(job_).state, JobState::kCompleted);
    for (Player* p : {a_, b_}) p->Obeys();
    EXPECT_TRUE(a_->free() && b_->free());
  }
  Player* a_ = nullptr;
  Player* b_ = nullptr;
  JobId job_;
};

TEST_F(RestartTest, AQueuedJobIsStillQueued) {
  const JobId waiting = Submit({.min_workers = 3});
  Restart();
  EXPECT_EQ(Job(waiting).state, JobState::kQueued);
  EXPECT_THAT(Reason(waiting), HasSubstr("needs 3 workers"));
}

TEST_F(RestartTest, ARunningJobRunsOnWhenItsWorkersReattach) {
  AllTrain(job_);
  a_->Commits(7);

  Restart();
  EXPECT_EQ(Job(job_).state, JobState::kRunning);
  EXPECT_THAT(Reason(job_), HasSubstr("waiting for the job's workers to "
                                      "reattach"));
  EXPECT_EQ(a_->contact(), Contact::kSuspect);
  EXPECT_EQ(a_->view().assigned, KeyOfJob(job_));
  BothHello();

  EXPECT_EQ(Job(job_).state, JobState::kRunning);
  EXPECT_EQ(Job(job_).generation, 1);
  EXPECT_EQ(Job(job_).committed_step_count, 7);
  EXPECT_EQ(Reason(job_), "");
  EXPECT_THAT(a_->commands(), IsEmpty());
  EXPECT_THAT(b_->commands(), IsEmpty());
  a_->Is(Phase::kOutputReady);
  b_->Is(Phase::kOutputReady);
  ExpectCompletes();
}

TEST_F(RestartTest, StepsThatWereTakenMeanwhileAreKnownAgain) {
  AllTrain(job_);
  a_->Commits(7);
  Restart();
  a_->status.held->committed_step_count = 30;

  a_->Hello();

  EXPECT_EQ(Job(job_).committed_step_count, 30);
  EXPECT_EQ(Job(job_).best_step_count, 30);
}

TEST_F(RestartTest, TheReasonSaysThatItWaitsUntilAllAreBack) {
  AllTrain(job_);
  Restart();
  a_->Hello();
  EXPECT_THAT(Reason(job_), HasSubstr("waiting for the job's workers"));
  b_->Hello();
  EXPECT_EQ(Reason(job_), "");
}

TEST_F(RestartTest, NobodyIsLostBeforeTheWindowIsOver) {
  AllTrain(job_);
  Restart();
  EXPECT_EQ(core().NextDeadline(), now().steady + options().reattach_window);
  Pass(options().reattach_window - kInstant);
  Tick();
  EXPECT_EQ(Job(job_).state, JobState::kRunning);

  BothHello();

  Pass(kInstant);
  Tick();
  EXPECT_EQ(Job(job_).state, JobState::kRunning);
}

TEST_F(RestartTest, AMemberThatDoesNotComeBackIsLostWhenTheWindowIsOver) {
  AllTrain(job_);
  Restart();
  Player& c = Attach("c");
  Pass(options().reattach_window - absl::Seconds(1));
  a_->Hello();
  c.Hello();
  Pass(absl::Seconds(1) - kInstant);
  Tick();
  EXPECT_EQ(Job(job_).state, JobState::kRunning);

  Pass(kInstant);
  Tick();

  EXPECT_EQ(b_->contact(), Contact::kLost);
  EXPECT_EQ(Job(job_).state, JobState::kRecovering);
  EXPECT_THAT(Reason(job_), HasSubstr("worker b: silent for 10s"));
  a_->Obeys();
  EXPECT_EQ(Job(job_).generation, 2);
  EXPECT_THAT(Job(job_).members, ElementsAre(a_->id(), c.id()));
}

TEST_F(RestartTest, AMemberWhoseGenerationCommitsIsCutOffAndNotLost) {
  AllTrain(job_);
  Restart();
  a_->Hello();
  Pass(options().lease - kInstant);
  a_->Commits(5);
  Pass(options().lease - kInstant);
  a_->Commits(6);
  Pass(options().reattach_window - 2 * options().lease + 2 * kInstant);
  a_->Beat();

  EXPECT_EQ(b_->contact(), Contact::kCutOff);
  EXPECT_EQ(Job(job_).state, JobState::kRunning);
  b_->Hello();
  EXPECT_EQ(Reason(job_), "");
}

TEST_F(RestartTest, IfNobodyComesBackTheJobIsPlacedAnew) {
  AllTrain(job_);
  Restart();
  PassTicking(options().reattach_window);
  EXPECT_EQ(Job(job_).state, JobState::kRecovering);
  EXPECT_EQ(Job(job_).failure_count, 1);

  // Both held on to generation 1 for too long.
  BothHello();
  EXPECT_THAT(a_->commands(), ElementsAre("Release 1"));
  a_->Obeys();
  b_->Obeys();
  PassTicking(options().worker_backoff);

  EXPECT_EQ(Job(job_).generation, 2);
  AllReady(job_);
  ExpectCompletes();
}

TEST_F(RestartTest, ADaemonThatWasRestartedMeanwhileHasLostItsPlace) {
  AllTrain(job_);
  Restart();
  a_->Hello();

  b_->StartsAnew().Hello();

  EXPECT_EQ(Job(job_).state, JobState::kRecovering);
  EXPECT_THAT(Reason(job_), HasSubstr("worker b: it no longer holds its "
                                      "place"));
  EXPECT_EQ(a_->commands().back(), "Release 1");
}

TEST_F(RestartTest, AMemberThatLeftMeanwhileIsReplacedWhenTheWindowIsOver) {
  AllTrain(job_);
  a_->Leaves();
  ASSERT_EQ(Job(job_).state, JobState::kRecovering);
  b_->Receives();
  Restart();
  b_->Hello();
  Attach("c");
  EXPECT_EQ(Job(job_).generation, 2);
}

// Stored, and not a word of it sent.
TEST_F(RestartTest, AGenerationThatNobodyHeardOfIsFollowedByTheNext) {
  ASSERT_EQ(Job(job_).generation, 1);
  Restart();
  EXPECT_EQ(Job(job_).state, JobState::kForming);

  BothHello();

  EXPECT_EQ(Job(job_).state, JobState::kRecovering);
  a_->Obeys();
  b_->Obeys();
  PassTicking(options().worker_backoff);
  EXPECT_EQ(Job(job_).generation, 2);
  AllReady(job_);
  ExpectCompletes();
}

TEST_F(RestartTest, MembersThatArePreparingGoOn) {
  a_->Obeys();
  b_->Obeys().Joins();
  Restart();
  BothHello();
  EXPECT_EQ(Reason(job_), "1/2 prepared, waiting for a");

  a_->Joins();

  EXPECT_THAT(a_->commands(), ElementsAre("Start 1"));
  EXPECT_THAT(b_->commands(), ElementsAre("Start 1"));
  EXPECT_EQ(b_->stream().commands[0].sequence, 1);
  for (Player* p : {a_, b_}) p->Obeys().Is(Phase::kTraining);
  for (Player* p : {a_, b_}) p->Is(Phase::kOutputReady);
  ExpectCompletes();
}

TEST_F(RestartTest, OnlyThoseWithoutTheirStartGetIt) {
  AllJoin(job_);
  a_->Receives();  // b has not received its own.
  const Start before = b_->last<Start>();
  Restart();

  BothHello();

  EXPECT_THAT(a_->commands(), IsEmpty());
  EXPECT_THAT(b_->commands(), ElementsAre("Start 1"));
  const Start& again = b_->last<Start>();
  EXPECT_EQ(again.peer_addresses, before.peer_addresses);
  EXPECT_EQ(again.micro_batches, before.micro_batches);
  EXPECT_EQ(again.nonce, before.nonce);
  for (Player* p : {a_, b_}) p->Obeys().Is(Phase::kTraining);
  EXPECT_EQ(Job(job_).state, JobState::kRunning);
}

TEST_F(RestartTest, AFormingJobWhoseMembersTrainRuns) {
  AllJoin(job_);
  for (Player* p : {a_, b_}) {
    p->Receives();
    p->status.held->phase = Phase::kTraining;
  }
  Restart();
  ASSERT_EQ(Job(job_).state, JobState::kForming);

  BothHello();

  EXPECT_EQ(Job(job_).state, JobState::kRunning);
  EXPECT_EQ(Job(job_).start_time, now().wall);
}

// Forming gets its whole time again, after the window.
TEST_F(RestartTest, FormingEndsInTime) {
  a_->Obeys();
  b_->Obeys().Joins();
  Restart();
  BothHello();
  const Instant end =
      now().steady + options().reattach_window + options().forming_timeout;
  while (now().steady + absl::Seconds(3) < end) {
    Pass(absl::Seconds(3));
    a_->Beat();
    b_->Beat();
  }
  Pass(end - now().steady - kInstant);
  a_->Beat();
  b_->Beat();
  EXPECT_EQ(Job(job_).state, JobState::kForming);
  Pass(kInstant);
  Tick();
  EXPECT_THAT(Reason(job_), HasSubstr("worker a: forming took longer"));
}

TEST_F(RestartTest, OutputThatIsReadyIsCommitted) {
  AllReady(job_);
  Restart();
  a_->Hello();
  EXPECT_THAT(a_->commands(), IsEmpty());
  b_->Hello();
  EXPECT_THAT(a_->commands(), ElementsAre("CommitOutput 1"));
  ExpectCompletes();
}

TEST_F(RestartTest, AFormingJobWhoseOutputIsReadyIsCommitted) {
  AllJoin(job_);
  for (Player* p : {a_, b_}) {
    p->Receives();
    p->status.held->phase = Phase::kOutputReady;
  }
  Restart();
  BothHello();
  EXPECT_THAT(a_->commands(), ElementsAre("CommitOutput 1"));
  ExpectCompletes();
}

TEST_F(RestartTest, OutputThatWasCommittedMeanwhileCompletesTheJob) {
  AllReady(job_);
  a_->Receives();
  ASSERT_EQ(a_->status.held->phase, Phase::kFinished);
  Restart();
  EXPECT_EQ(Job(job_).state, JobState::kRunning);

  a_->Hello();

  EXPECT_EQ(Job(job_).state, JobState::kCompleted);
  b_->Hello();
  ExpectCompletes();
}

TEST_F(RestartTest, ARecoveringJobGoesOnAndRemembersWhy) {
  AllTrain(job_);
  a_->Fails(Failure::Cause::kPeer, "lost rank 1");
  Restart();
  EXPECT_EQ(Job(job_).state, JobState::kRecovering);
  EXPECT_EQ(Job(job_).failure_count, 1);
  EXPECT_EQ(Reason(job_),
            "worker a: lost rank 1; needs 2 workers of class cpu/x: 0 are "
            "present");

  BothHello();
  a_->Obeys();
  b_->Obeys();

  EXPECT_EQ(Job(job_).generation, 2);
  EXPECT_EQ(Job(job_).state, JobState::kForming);
}

TEST_F(RestartTest, WhatEndedStaysEnded) {
  AllReady(job_);
  a_->Obeys();
  ASSERT_EQ(Job(job_).state, JobState::kCompleted);
  const absl::Time end = Job(job_).end_time.value();
  Pass(absl::Seconds(5));
  Restart();

  EXPECT_EQ(Job(job_).state, JobState::kCompleted);
  EXPECT_EQ(Job(job_).end_time, end);
  BothHello();
  EXPECT_THAT(a_->commands(), ElementsAre("Release 1"));
  EXPECT_THAT(b_->commands(), ElementsAre("Release 1"));
  a_->Obeys();
  b_->Obeys();
  EXPECT_TRUE(a_->free() && b_->free());
}

TEST_F(RestartTest, WhoIsStillLettingGoIsNotPlaced) {
  AllTrain(job_);
  ASSERT_TRUE(Cancel(job_).ok());
  a_->status.held->phase = Phase::kAborting;
  Restart();
  a_->Hello();
  EXPECT_THAT(a_->commands(), IsEmpty());

  const JobId next = Submit({});
  EXPECT_EQ(Job(next).state, JobState::kQueued);
  a_->status.held.reset();
  a_->Beat();
  EXPECT_EQ(Job(next).state, JobState::kForming);
}

TEST_F(RestartTest, AnOldStoreIsNoticedByTheWorkersItHasMet) {
  a_->Receives();
  Hello hello = a_->NextHello();
  hello.coordinator_incarnation = {options().incarnation.value + 1};

  const absl::Status status = a_->TryHello(hello);

  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("old copy of its store"));
}

// Members of a job that reattaches are present, of its class, and not free.
TEST_F(RestartTest, WhoIsAwaitedHoldsUpThoseBehind) {
  AllTrain(job_);
  const JobId big = Submit({.min_workers = 3});
  const JobId small = Submit({});
  Restart();
  Player& c = Attach("c");

  EXPECT_EQ(Job(small).state, JobState::kQueued);
  EXPECT_EQ(Reason(small), "waiting behind jobs/" + big.value);
  EXPECT_TRUE(c.free());
}

TEST_F(RestartTest, GenerationsAreNeverReusedHoweverOftenItRestarts) {
  std::vector<int64_t> prepared = {1};
  auto both_are_prepared = [&] {
    for (Player* p : {a_, b_}) {
      EXPECT_EQ(p->last<Prepare>().key, KeyOfJob(job_));
    }
    prepared.push_back(Job(job_).generation);
  };
  for (int i = 0; i < 3; ++i) {
    Restart();  // Before anybody received the last Prepare.
    BothHello();
    a_->Obeys();
    b_->Obeys();
    PassTicking(options().worker_backoff);
    both_are_prepared();

    AllTrain(job_);
    a_->Commits(i + 1).Fails(Failure::Cause::kPeer, "x");
    Restart();  // Between two generations.
    BothHello();
    a_->Obeys();
    b_->Obeys();
    both_are_prepared();
  }
  EXPECT_THAT(prepared, ElementsAre(1, 2, 3, 4, 5, 6, 7));
}

}  // namespace
}  // namespace lockstep
