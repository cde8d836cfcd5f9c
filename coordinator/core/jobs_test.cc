// Submission, cancelling, and what is kept of jobs that have ended.

#include "coordinator/core/coordinator_fixture.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class JobsTest : public CoordinatorFixture {};

TEST_F(JobsTest, ASubmittedJobIsStoredBeforeAnythingIsSaidOfIt) {
  const JobId job = Submit({.priority = 3});

  ASSERT_GE(effects().size(), 2u);
  EXPECT_TRUE(std::holds_alternative<PersistJob>(effects()[0]));
  EXPECT_EQ(Job(job).state, JobState::kQueued);
  EXPECT_EQ(Job(job).order, 1);
  EXPECT_EQ(Job(job).needs.priority, 3);
  EXPECT_EQ(Job(job).create_time, now().wall);
  EXPECT_EQ(Job(job).generation, 0);
}

TEST_F(JobsTest, ARepeatedRequestGetsTheFirstJobAndChangesNothing) {
  const JobId first = TrySubmit({}, "r", "spec").value();

  Pass(absl::Seconds(1));
  const absl::StatusOr<JobId> again = TrySubmit({}, "r", "spec");

  EXPECT_EQ(again.value(), first);
  EXPECT_THAT(effects(), IsEmpty());
  EXPECT_THAT(core().JobIds(), ElementsAre(first));
}

TEST_F(JobsTest, ARepeatAfterTheJobEndedStillGetsIt) {
  const JobId first = TrySubmit({}, "r", "spec").value();
  ASSERT_TRUE(Cancel(first).ok());

  EXPECT_EQ(TrySubmit({}, "r", "spec").value(), first);
}

TEST_F(JobsTest, ARepeatAfterARestartStillGetsTheFirstJob) {
  const JobId first = TrySubmit({}, "r", "spec").value();

  Restart();

  EXPECT_EQ(TrySubmit({}, "r", "spec").value(), first);
}

TEST_F(JobsTest, ARequestIdWithAnotherSpecIsRefused) {
  const JobId first = TrySubmit({}, "r", "spec").value();

  const absl::Status status = TrySubmit({}, "r", "other").status();

  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("request_id r"), HasSubstr(first.value)));
  EXPECT_THAT(core().JobIds(), ElementsAre(first));
}

TEST_F(JobsTest, AnOutputDirectoryBelongsToOneUnfinishedJobOnly) {
  const JobId first = Submit({.output_directory = "/out/a"});
  ASSERT_TRUE(TrySubmit({.output_directory = "/out/b"}, "b", "s").ok());

  const absl::Status clash =
      TrySubmit({.output_directory = "/out/a"}, "c", "s").status();

  EXPECT_EQ(clash.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(clash.message()),
              AllOf(HasSubstr("/out/a"), HasSubstr("jobs/" + first.value)));

  ASSERT_TRUE(Cancel(first).ok());
  EXPECT_TRUE(TrySubmit({.output_directory = "/out/a"}, "c", "s").ok());

  // Nor one that would stand in the way of another's model.
  for (const char* wrong : {"/out/b/model", "/out/b/model/x", "/out/b"}) {
    EXPECT_EQ(
        TrySubmit({.output_directory = wrong}, wrong, "s").status().code(),
        absl::StatusCode::kFailedPrecondition)
        << wrong;
  }
  ASSERT_TRUE(TrySubmit({.output_directory = "/x/model/y"}, "d", "s").ok());
  EXPECT_FALSE(TrySubmit({.output_directory = "/x"}, "e", "s").ok());
  for (const char* right :
       {"/out/b/models", "/out", "/out/b/c", "/out/bb/model"}) {
    EXPECT_TRUE(TrySubmit({.output_directory = right}, right, "s").ok())
        << right;
  }
}

TEST_F(JobsTest, UnfinishedJobsAreBounded) {
  CoordinatorOptions bounded = options();
  bounded.unfinished_job_max = 2;
  Restart(bounded);
  const JobId first = Submit({});
  ASSERT_TRUE(TrySubmit({}, "second", "s").ok());

  EXPECT_EQ(TrySubmit({}, "third", "s").status().code(),
            absl::StatusCode::kResourceExhausted);
  // What was admitted is still answered.
  EXPECT_TRUE(TrySubmit({}, "second", "s").ok());

  ASSERT_TRUE(Cancel(first).ok());
  EXPECT_TRUE(TrySubmit({}, "third", "s").ok());
}

// ------------------------------------------------------------- cancelling

TEST_F(JobsTest, CancellingAnUnknownJobSaysSo) {
  EXPECT_EQ(Cancel(JobId{"none"}).code(), absl::StatusCode::kNotFound);
}

TEST_F(JobsTest, CancellingIsIdempotentAndKeepsTheFirstReason) {
  const JobId job = Submit({});

  ASSERT_TRUE(Cancel(job, "no longer needed").ok());
  const absl::Time end = Job(job).end_time.value();
  Pass(absl::Seconds(1));
  EXPECT_TRUE(Cancel(job, "again").ok());

  EXPECT_THAT(effects(), IsEmpty());
  EXPECT_EQ(Job(job).state, JobState::kCancelled);
  EXPECT_EQ(Reason(job), "cancelled: no longer needed");
  EXPECT_EQ(Job(job).end_time.value(), end);
}

// Cancels at each point of a generation's life, and lets the workers let go.
class CancelAtTest : public CoordinatorFixture,
                     public ::testing::WithParamInterface<const char*> {
 protected:
  // Brings a job of two to the point that the parameter names.
  JobId BringTo(const std::string& point) {
    Player& a = Attach("a");
    Player& b = Attach("b");
    const JobId job = Submit({.min_workers = 2});
    if (point == "Prepared") return job;
    a.Obeys();
    if (point == "OnePreparing") return job;
    b.Obeys();
    a.Joins();
    if (point == "OneJoined") return job;
    b.Joins();
    if (point == "StartSent") return job;
    a.Obeys();
    b.Obeys();
    if (point == "Connecting") return job;
    a.Is(Phase::kTraining);
    if (point == "OneTraining") return job;
    b.Is(Phase::kTraining);
    if (point == "Running") return job;
    a.Commits(7);
    if (point == "Stepping") return job;
    if (point == "Suspect") {
      b.Breaks();
      return job;
    }
    a.Is(Phase::kOutputReady);
    if (point == "OneReady") return job;
    b.Is(Phase::kOutputReady);
    EXPECT_THAT(a.commands(),
                ElementsAre("Prepare 1", "Start 1", "CommitOutput 1"));
    return job;
  }
};

TEST_P(CancelAtTest, TheJobEndsAndItsWorkersAreFreeOnceTheyLetGo) {
  const JobId job = BringTo(GetParam());
  Player& a = player(WorkerId{"a"});
  Player& b = player(WorkerId{"b"});

  ASSERT_TRUE(Cancel(job).ok());

  EXPECT_EQ(Job(job).state, JobState::kCancelled);
  EXPECT_EQ(Job(job).end_time, now().wall);
  // Another job must not get them while they hold something.
  const JobId next = Submit({.min_workers = 2});
  EXPECT_EQ(Job(next).state, JobState::kQueued);
  if (b.contact() == Contact::kSuspect) b.Hello();
  EXPECT_EQ(a.commands().back(), "Release 1");
  EXPECT_EQ(b.commands().back(), "Release 1");
  EXPECT_THAT(a.last<Release>().reason, HasSubstr("CANCELLED"));

  a.Receives();
  a.status.held.reset();
  a.Beat();
  EXPECT_EQ(Job(next).state, JobState::kQueued);
  b.Obeys();

  EXPECT_EQ(Job(next).state, JobState::kForming);
  AllReady(next);
  EXPECT_EQ(Job(job).state, JobState::kCancelled);
}

TEST_P(CancelAtTest, ARestartForgetsNothingOfIt) {
  const JobId job = BringTo(GetParam());
  ASSERT_TRUE(Cancel(job).ok());

  Restart();

  EXPECT_EQ(Job(job).state, JobState::kCancelled);
  for (Player* p : {&player(WorkerId{"a"}), &player(WorkerId{"b"})}) {
    p->Hello();
    EXPECT_EQ(p->commands(), p->holds() ? std::vector<std::string>{"Release 1"}
                                        : std::vector<std::string>{});
    p->Obeys();
    EXPECT_FALSE(p->holds());
    EXPECT_TRUE(p->free());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Points, CancelAtTest,
    ::testing::Values("Prepared", "OnePreparing", "OneJoined", "StartSent",
                      "Connecting", "OneTraining", "Running", "Stepping",
                      "Suspect", "OneReady", "OutputReady"),
    [](const auto& point) { return std::string(point.param); });

TEST_F(JobsTest, AJobIsCancelledWhileItRecovers) {
  Player& a = Attach("a");
  Player& b = Attach("b");
  const JobId job = Submit({.min_workers = 2});
  AllTrain(job);
  a.Fails(Failure::Cause::kPeer, "connection reset");
  ASSERT_EQ(Job(job).state, JobState::kRecovering);

  ASSERT_TRUE(Cancel(job).ok());

  EXPECT_EQ(Job(job).state, JobState::kCancelled);
  a.Obeys();
  b.Obeys();
  EXPECT_TRUE(a.free() && b.free());
  EXPECT_EQ(Job(job).generation, 1);
}

TEST_F(JobsTest, WhatHasEndedOtherwiseCannotBeCancelled) {
  Player& a = Attach("a");
  const JobId done = Submit({});
  AllReady(done);
  a.Obeys();
  ASSERT_EQ(Job(done).state, JobState::kCompleted);
  a.Obeys();
  const JobId failed = Submit({});
  a.Obeys().Fails(Failure::Cause::kJob, "no such file");
  ASSERT_EQ(Job(failed).state, JobState::kFailed);

  for (const JobId& job : {done, failed}) {
    const JobState before = Job(job).state;
    const absl::Status status = Cancel(job);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(std::string(JobStateName(before))));
    EXPECT_EQ(Job(job).state, before);
  }
}

TEST_F(JobsTest, AnOutputThatWasCommittedTooLateDoesNotReviveACancelledJob) {
  Player& a = Attach("a");
  const JobId job = Submit({});
  AllReady(job);
  a.Receives();  // Commits its output.
  ASSERT_TRUE(Cancel(job).ok());

  a.Beat();

  EXPECT_EQ(Job(job).state, JobState::kCancelled);
  a.Obeys();
  EXPECT_TRUE(a.free());
}

// A cancelled job's directory may be another job's by the time that the worker
// is back.
TEST_F(JobsTest, AWorkerThatComesBackIsNotToldToCommitACancelledJobsOutput) {
  Player& a = Attach("a");
  const JobId job = Submit({});
  AllTrain(job);
  a.status.held->phase = Phase::kOutputReady;
  a.Breaks().Hello();
  ASSERT_EQ(a.commands().back(), "CommitOutput 1");
  a.Breaks();  // Before it was received.
  ASSERT_TRUE(Cancel(job).ok());

  a.Hello();

  EXPECT_THAT(a.commands(), ElementsAre("Release 1", "Release 1"));
  a.Obeys();
  EXPECT_FALSE(a.holds());
  EXPECT_TRUE(a.free());
}

// ------------------------------------------------------------- retention

TEST_F(JobsTest, OfTheJobsThatEndedTheLastOnesAreKept) {
  CoordinatorOptions few = options();
  few.finished_job_max = 2;
  Restart(few);
  // The oldest ends last: it is news, and must not be forgotten at once.
  const JobId oldest = TrySubmit({}, "oldest", "s").value();
  const JobId b = TrySubmit({}, "b", "s").value();
  const JobId c = TrySubmit({}, "c", "s").value();
  for (const JobId& job : {b, c}) {
    Pass(absl::Seconds(1));
    ASSERT_TRUE(Cancel(job).ok());
  }

  Pass(absl::Seconds(1));
  ASSERT_TRUE(Cancel(oldest).ok());

  EXPECT_THAT(core().JobIds(), ElementsAre(oldest, c));
  EXPECT_EQ(CountEffects<EraseJob>(), 1);
  EXPECT_EQ(Job(oldest).state, JobState::kCancelled);
  // Its request_id is forgotten with it.
  EXPECT_NE(TrySubmit({}, "b", "other").value(), b);
}

TEST_F(JobsTest, TheOrderOfEndingOutlivesTheCoordinator) {
  const JobId oldest = Submit({});
  const JobId b = Submit({});
  const JobId c = Submit({});
  for (const JobId& job : {b, c, oldest}) {
    Pass(absl::Seconds(1));
    ASSERT_TRUE(Cancel(job).ok());
  }

  CoordinatorOptions few = options();
  few.finished_job_max = 2;
  Restart(few);

  EXPECT_THAT(core().JobIds(), ElementsAre(oldest, c));
}

TEST_F(JobsTest, UnfinishedJobsAreNeverForgotten) {
  CoordinatorOptions few = options();
  few.finished_job_max = 1;
  Restart(few);
  const JobId waiting = Submit({.min_workers = 9});
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(Cancel(Submit({})).ok());

  EXPECT_EQ(core().JobIds().size(), 2u);
  EXPECT_EQ(Job(waiting).state, JobState::kQueued);
}

TEST_F(JobsTest, AForgottenJobsWorkersStillLetGo) {
  CoordinatorOptions few = options();
  few.finished_job_max = 1;
  Restart(few);
  Player& a = Attach("a");
  const JobId job = Submit({});
  AllTrain(job);
  ASSERT_TRUE(Cancel(job).ok());
  Pass(absl::Seconds(1));
  ASSERT_TRUE(Cancel(Submit({})).ok());
  ASSERT_EQ(core().FindJob(job), nullptr);

  a.Obeys();

  EXPECT_TRUE(a.free());
  EXPECT_EQ(Job(Submit({})).state, JobState::kForming);
}

// --------------------------------------------------------------- options

TEST(CoordinatorOptionsTest, OutOfRangeIsRefusedByName) {
  struct Case {
    const char* name;
    void (*change)(CoordinatorOptions&);
  };
  for (const Case& c : std::vector<Case>{
           {"incarnation", [](auto& o) { o.incarnation = {0}; }},
           {"lease", [](auto& o) { o.lease = absl::ZeroDuration(); }},
           {"forming_timeout",
            [](auto& o) { o.forming_timeout = absl::ZeroDuration(); }},
           {"step_bound", [](auto& o) { o.step_bound = absl::Seconds(-1); }},
           {"reattach_window",
            [](auto& o) { o.reattach_window = absl::ZeroDuration(); }},
           {"worker_backoff",
            [](auto& o) { o.worker_backoff = absl::ZeroDuration(); }},
           {"worker_backoff_max",
            [](auto& o) { o.worker_backoff_max = absl::Milliseconds(1); }},
           {"lost_worker_retention",
            [](auto& o) { o.lost_worker_retention = absl::ZeroDuration(); }},
           {"worker_count_max", [](auto& o) { o.worker_count_max = 0; }},
           {"unfinished_job_max", [](auto& o) { o.unfinished_job_max = 0; }},
           {"finished_job_max", [](auto& o) { o.finished_job_max = 0; }},
       }) {
    CoordinatorOptions options;
    options.incarnation = {1};
    Effects effects;
    ASSERT_TRUE(Coordinator::Create(options, {}, {}, effects).ok());
    c.change(options);

    const absl::Status status =
        Coordinator::Create(options, {}, {}, effects).status();

    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.name));
  }
}

}  // namespace
}  // namespace lockstep
