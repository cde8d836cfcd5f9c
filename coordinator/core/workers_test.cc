// Contact with workers: leases, streams, names, and the command log.

#include "coordinator/core/coordinator_fixture.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class WorkersTest : public CoordinatorFixture {
 protected:
  absl::Duration lease() const { return options().lease; }
};

TEST_F(WorkersTest, AHelloIsWelcomedWithWhatTheWorkerNeedsToKnow) {
  Player& a = Attach("a");

  const Welcome& welcome = a.stream().welcome.value();
  EXPECT_EQ(welcome.coordinator_incarnation, options().incarnation);
  EXPECT_EQ(welcome.lease, lease());
  EXPECT_EQ(welcome.beat_interval, lease() / 4);
  EXPECT_EQ(a.contact(), Contact::kAttached);
  EXPECT_EQ(a.view().peer_address, "peer-of-a");
  EXPECT_EQ(a.view().connect_time, now().wall);
  EXPECT_EQ(a.view().device, a.device);
}

struct BadHelloCase {
  const char* name;
  void (*change)(Hello&);
  absl::StatusCode want;
};

class BadHelloTest : public CoordinatorFixture,
                     public ::testing::WithParamInterface<BadHelloCase> {};

TEST_P(BadHelloTest, IsRefusedAndForgotten) {
  Player& a = Introduce("a");
  Hello hello = a.NextHello();
  GetParam().change(hello);

  EXPECT_EQ(a.TryHello(hello).code(), GetParam().want);

  EXPECT_THAT(shell().workers(), IsEmpty());
  a.Hello();
}

INSTANTIATE_TEST_SUITE_P(
    All, BadHelloTest,
    ::testing::Values(
        BadHelloCase{"NoName", [](Hello& h) { h.worker.value = ""; },
                     absl::StatusCode::kInvalidArgument},
        BadHelloCase{"NameOfPath", [](Hello& h) { h.worker.value = "a/b"; },
                     absl::StatusCode::kInvalidArgument},
        BadHelloCase{"NoIncarnation", [](Hello& h) { h.incarnation = {0}; },
                     absl::StatusCode::kInvalidArgument},
        BadHelloCase{"NoStream", [](Hello& h) { h.stream = 0; },
                     absl::StatusCode::kInvalidArgument},
        BadHelloCase{"MetANewerCoordinator",
                     [](Hello& h) { h.coordinator_incarnation = {1000}; },
                     absl::StatusCode::kFailedPrecondition}),
    [](const auto& p) { return p.param.name; });

// ----------------------------------------------------------------- leases

TEST_F(WorkersTest, ASilentWorkerIsLostAtTheEndOfItsLeaseAndNotBefore) {
  Player& a = Attach("a");
  EXPECT_EQ(core().NextDeadline(), now().steady + lease());

  Pass(lease() - kInstant);
  Tick();
  EXPECT_EQ(a.contact(), Contact::kAttached);

  Pass(kInstant);
  Tick();
  EXPECT_EQ(a.contact(), Contact::kLost);
  EXPECT_EQ(a.view().reason, "silent for 4s");
  EXPECT_EQ(a.stream().closed->code(), absl::StatusCode::kUnavailable);
}

TEST_F(WorkersTest, EveryStatusRenewsTheLease) {
  Player& a = Attach("a");
  for (int i = 0; i < 3; ++i) {
    Pass(lease() - kInstant);
    a.Beat();
    EXPECT_EQ(a.view().last_seen_time, now().wall);
  }
  Pass(lease() - kInstant);
  Tick();
  EXPECT_EQ(a.contact(), Contact::kAttached);
  Pass(kInstant);
  Tick();
  EXPECT_EQ(a.contact(), Contact::kLost);
}

TEST_F(WorkersTest, AStepReportRenewsTheLease) {
  Player& a = Attach("a");
  AllTrain(Submit({}));
  Pass(lease() - kInstant);
  a.Commits(1);
  Pass(lease() - kInstant);
  Tick();
  EXPECT_EQ(a.contact(), Contact::kAttached);
}

TEST_F(WorkersTest, WhatIsOverdueExpiresBeforeAnyEventAndWithoutTick) {
  Player& a = Attach("a");
  Pass(lease());

  a.Beat();  // Too late.

  EXPECT_EQ(a.contact(), Contact::kLost);
  EXPECT_TRUE(a.stream().closed.has_value());
  const JobId job = Submit({});
  EXPECT_EQ(Job(job).state, JobState::kQueued);
}

TEST_F(WorkersTest, AWorkerWhoseStreamBrokeIsSuspectUntilItsLeaseEnds) {
  Player& a = Attach("a");
  Pass(absl::Seconds(1));

  a.Breaks();

  EXPECT_EQ(a.contact(), Contact::kSuspect);
  EXPECT_EQ(a.view().reason, "its stream broke");
  Pass(lease() - absl::Seconds(1) - kInstant);
  Tick();
  EXPECT_EQ(a.contact(), Contact::kSuspect);
  Pass(kInstant);
  Tick();
  EXPECT_EQ(a.contact(), Contact::kLost);
}

TEST_F(WorkersTest, AWorkerThatComesBackIsAsBefore) {
  Player& a = Attach("a");
  a.Breaks().Hello();

  EXPECT_EQ(a.contact(), Contact::kAttached);
  EXPECT_EQ(a.view().reason, "");
  EXPECT_EQ(Job(Submit({})).state, JobState::kForming);
}

TEST_F(WorkersTest, AWorkerThatLeavesIsLostAtOnce) {
  Player& a = Attach("a");
  const JobId job = Submit({});
  AllTrain(job);

  a.Leaves();

  EXPECT_EQ(a.contact(), Contact::kLost);
  EXPECT_EQ(a.view().reason, "its daemon was stopped");
  EXPECT_TRUE(a.free());
  EXPECT_EQ(Job(job).state, JobState::kRecovering);
}

TEST_F(WorkersTest, ALostWorkerIsShownForAWhileThenForgotten) {
  Player& a = Attach("a");
  Pass(lease());
  Tick();

  Pass(options().lost_worker_retention - kInstant);
  Tick();
  EXPECT_TRUE(a.known());
  Pass(kInstant);
  Tick();
  EXPECT_FALSE(a.known());
  EXPECT_EQ(core().NextDeadline(), InfiniteFuture());
}

TEST_F(WorkersTest, ALostWorkerMayComeBack) {
  Player& a = Attach("a");
  Pass(lease());
  Tick();

  a.Hello();

  EXPECT_EQ(a.contact(), Contact::kAttached);
  EXPECT_EQ(Job(Submit({})).state, JobState::kForming);
}

TEST_F(WorkersTest, WorkersAreBoundedAndLostOnesMakeRoom) {
  CoordinatorOptions two = options();
  two.worker_count_max = 2;
  Restart(two);
  Player& a = Attach("a");
  Player& b = Attach("b");
  Player& c = Introduce("c");

  EXPECT_EQ(c.TryHello(c.NextHello()).code(),
            absl::StatusCode::kResourceExhausted);
  // Who is known gets in all the same.
  a.Breaks().Hello();

  // b is lost before a is.
  b.Leaves();
  Pass(absl::Seconds(1));
  a.Leaves();
  c.Hello();
  EXPECT_FALSE(b.known());
  EXPECT_TRUE(a.known());
}

// ------------------------------------------------------------------ names

TEST_F(WorkersTest, TheNameOfALiveWorkerIsTaken) {
  Player& a = Attach("a");
  Hello other = a.NextHello();
  other.incarnation = {2};
  other.stream = 1;

  const absl::Status status = a.TryHello(other);

  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("process 42 on host-of-a"), HasSubstr("--name")));
  EXPECT_FALSE(a.stream().closed.has_value());
  EXPECT_EQ(a.view().incarnation.value, 1);
}

TEST_F(WorkersTest, ARestartedWorkerGetsItsNameOnceTheStreamBroke) {
  Player& a = Attach("a");
  const JobId job = Submit({});
  AllTrain(job);
  a.Breaks();

  a.StartsAnew().Hello();

  EXPECT_EQ(a.contact(), Contact::kAttached);
  EXPECT_EQ(a.view().incarnation.value, 2);
  // What its former self held died with it.
  EXPECT_TRUE(a.free());
  EXPECT_THAT(Reason(job), HasSubstr("worker a: its daemon was restarted"));
}

TEST_F(WorkersTest, ARestartedWorkerGetsItsNameOnceTheLeaseIsOver) {
  Player& a = Attach("a");
  Pass(lease());

  a.StartsAnew().Hello();

  EXPECT_EQ(a.view().incarnation.value, 2);
}

TEST_F(WorkersTest, AnOlderIncarnationMustEnd) {
  Player& a = Attach("a");
  a.Breaks().StartsAnew().Hello();
  Hello old = a.NextHello();
  old.incarnation = {1};

  EXPECT_EQ(a.TryHello(old).code(), absl::StatusCode::kFailedPrecondition);
  a.Breaks();
  EXPECT_EQ(a.TryHello(old).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(a.view().incarnation.value, 2);
}

// ---------------------------------------------------------------- streams

TEST_F(WorkersTest, ANewerStreamTakesOverFromOneThatIsHalfOpen) {
  Player& a = Attach("a");
  const JobId job = Submit({});
  AllTrain(job);
  const SessionId old = a.session();

  a.Hello();

  EXPECT_EQ(shell().stream(old).closed->code(), absl::StatusCode::kAborted);
  EXPECT_EQ(a.contact(), Contact::kAttached);
  EXPECT_EQ(Job(job).state, JobState::kRunning);
}

TEST_F(WorkersTest, AnOlderStreamThatArrivesLateIsAborted) {
  Player& a = Introduce("a");
  const Hello first = a.NextHello();
  a.Hello();

  EXPECT_EQ(a.TryHello(first).code(), absl::StatusCode::kAborted);

  EXPECT_FALSE(a.stream().closed.has_value());
  EXPECT_EQ(a.contact(), Contact::kAttached);
  a.Breaks();
  EXPECT_EQ(a.TryHello(first).code(), absl::StatusCode::kAborted);
}

TEST_F(WorkersTest, LateMessagesOfAReplacedStreamHaveNoEffect) {
  Player& a = Attach("a");
  const JobId job = Submit({});
  AllTrain(job);
  const SessionId old = a.session();
  a.Hello();
  const GenerationKey key = KeyOfJob(job);
  EXPECT_EQ(core().RankOf(a.session(), key), 0);
  EXPECT_EQ(core().RankOf(old, key), std::nullopt);

  WorkerStatus stale = a.status;
  stale.held.reset();
  Pass(absl::Seconds(1));
  a.SaysOn(old, stale);
  EXPECT_THAT(effects(), IsEmpty());
  Effects late;
  core().OnStepsCommitted(now(), old, key, 100, late);
  core().OnSessionClosed(now(), old, /*leaving=*/true, late);
  EXPECT_THAT(late, IsEmpty());

  EXPECT_EQ(Job(job).state, JobState::kRunning);
  EXPECT_EQ(Job(job).committed_step_count, 0);
  EXPECT_EQ(a.contact(), Contact::kAttached);
  // Nor do they renew the lease.
  EXPECT_EQ(core().NextDeadline(), now().steady + (lease() - absl::Seconds(1)));
}

// ------------------------------------------------------------ command log

TEST_F(WorkersTest, ANewStreamGetsExactlyTheUnacknowledgedCommandsInOrder) {
  Player& a = Attach("a");
  Player& b = Attach("b");
  const JobId job = Submit({.min_workers = 2});
  AllJoin(job);
  ASSERT_THAT(a.commands(), ElementsAre("Prepare 1", "Start 1"));

  a.Hello();  // Has acknowledged Prepare.

  ASSERT_THAT(a.commands(), ElementsAre("Start 1"));
  EXPECT_EQ(a.stream().commands[0].sequence, 2);
  a.Obeys();
  a.Hello();
  EXPECT_THAT(a.commands(), IsEmpty());
  EXPECT_THAT(b.commands(), ElementsAre("Prepare 1", "Start 1"));
}

TEST_F(WorkersTest, WhatAHelloAcknowledgesIsNotSentAgain) {
  Player& a = Attach("a");
  Submit({});
  a.Receives().Breaks();

  a.Hello();

  EXPECT_THAT(a.commands(), IsEmpty());
  EXPECT_TRUE(a.status.held.has_value());
  EXPECT_FALSE(a.free());
}

TEST_F(WorkersTest, CommandsToAnAbsentWorkerWaitForItsNextStream) {
  Player& a = Attach("a");
  const JobId job = Submit({});
  a.Obeys().Joins();
  a.Receives().Breaks();
  ASSERT_TRUE(Cancel(job).ok());
  EXPECT_EQ(CountEffects<SendCommand>(), 0);

  a.Hello();

  EXPECT_THAT(a.commands(), ElementsAre("Release 1"));
  EXPECT_EQ(a.stream().commands[0].sequence, 3);
}

TEST_F(WorkersTest, ANewDaemonHasANewLog) {
  Player& a = Attach("a");
  Submit({});
  ASSERT_THAT(a.commands(), ElementsAre("Prepare 1"));
  a.Breaks();

  a.StartsAnew().Hello();

  // Its back-off runs; nothing of the former log is sent.
  EXPECT_THAT(a.commands(), IsEmpty());
  PassTicking(options().worker_backoff);
  ASSERT_THAT(a.commands(), ElementsAre("Prepare 2"));
  EXPECT_EQ(a.stream().commands[0].sequence, 1);
}

TEST_F(WorkersTest, ANewCoordinatorHasANewLog) {
  Player& a = Attach("a");
  const JobId job = Submit({});
  AllReady(job);
  a.Receives();                                // With applied_sequence 3.
  a.status.held->phase = Phase::kOutputReady;  // As if it had not.
  ASSERT_EQ(a.status.applied_sequence, 3);

  Restart();
  a.Hello();

  ASSERT_THAT(a.commands(), ElementsAre("CommitOutput 1"));
  EXPECT_EQ(a.stream().commands[0].sequence, 1);
  a.Obeys();
  EXPECT_EQ(Job(job).state, JobState::kCompleted);
}

TEST_F(WorkersTest, AcknowledgingMoreThanWasSentEndsTheStream) {
  Player& a = Attach("a");
  WorkerStatus wrong = a.status;
  wrong.applied_sequence = 1;

  a.Says(wrong);

  EXPECT_EQ(a.stream().closed->code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(a.stream().closed->message()),
              HasSubstr("applied_sequence=1, but only 0 were sent"));
  EXPECT_EQ(a.contact(), Contact::kSuspect);
  EXPECT_EQ(a.view().status.applied_sequence, 0);
  EXPECT_EQ(Job(Submit({})).state, JobState::kQueued);
}

TEST_F(WorkersTest, AWorkerThatOutlivedItsRecordGoesOnCounting) {
  Player& a = Attach("a");
  const JobId job = Submit({});
  a.Obeys();
  ASSERT_TRUE(Cancel(job).ok());
  a.Obeys();
  ASSERT_EQ(a.status.applied_sequence, 2);
  Pass(lease());
  Tick();
  Pass(options().lost_worker_retention);
  Tick();
  ASSERT_FALSE(a.known());

  a.Hello();
  Submit({});

  ASSERT_THAT(a.commands(), ElementsAre("Prepare 1"));
  EXPECT_EQ(a.stream().commands[0].sequence, 3);
}

TEST_F(WorkersTest, ALostWorkerThatComesBackIsToldOnlyToLetGo) {
  Player& a = Attach("a");
  Attach("b");
  const JobId job = Submit({.min_workers = 2});
  AllJoin(job);
  a.Breaks();  // With Start under way.
  Pass(lease());
  Tick();
  ASSERT_EQ(a.contact(), Contact::kLost);

  a.Hello();

  EXPECT_THAT(a.commands(), ElementsAre("Release 1"));
  a.Obeys();
  EXPECT_FALSE(a.holds());
}

// One worker's fault stays its own: the coordinator goes on.
TEST_F(WorkersTest, AWorkerThatHoldsOneStrangeGenerationAfterAnotherIsBounded) {
  Player& a = Attach("a");
  WorkerStatus status = a.status;
  for (int i = 1; i <= 100; ++i) {
    status.held.emplace();
    status.held->key = {JobId{"strange"}, i};
    a.Says(status);
  }
  EXPECT_LE(a.stream().commands.size(), 16u);

  a.Beat();  // Says that it holds nothing, and acknowledges nothing.
  Player& b = Attach("b");
  EXPECT_EQ(Job(Submit({})).members, std::vector<WorkerId>{b.id()});
  // When it follows again, it is told again.
  a.Receives().Beat();
  status.applied_sequence = a.status.applied_sequence;
  a.Says(status);
  EXPECT_EQ(a.last<Release>().key.generation, 100);
}

TEST_F(WorkersTest, ACoordinatorThatDidNotRunBlamesNobodyForTheSilence) {
  Player& a = Attach("a");
  const JobId job = Submit({});
  AllTrain(job);
  Pass(10 * options().lease);

  core().NoteStall(now());
  Tick();
  EXPECT_EQ(a.contact(), Contact::kAttached);
  EXPECT_EQ(Job(job).state, JobState::kRunning);

  Pass(options().lease - kInstant);
  Tick();
  EXPECT_EQ(Job(job).state, JobState::kRunning);
  Pass(kInstant);
  Tick();
  EXPECT_EQ(a.contact(), Contact::kLost);
  EXPECT_EQ(Job(job).state, JobState::kRecovering);
}

}  // namespace
}  // namespace lockstep
