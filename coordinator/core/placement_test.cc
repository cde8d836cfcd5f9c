// Which job gets which workers, and what those that wait say.

#include "absl/strings/str_cat.h"
#include "coordinator/core/coordinator_fixture.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class PlacementTest : public CoordinatorFixture {
 protected:
  void Release(const JobId& job) {
    ASSERT_TRUE(Cancel(job).ok());
    for (Player* p : MembersOf(job)) p->Obeys();
  }
  bool Placed(const JobId& job) { return Job(job).state == JobState::kForming; }
};

// ------------------------------------------------------------------- gangs

TEST_F(PlacementTest, AJobGetsAllOfMinWorkersOrNone) {
  const JobId job = Submit({.min_workers = 3});
  Attach("a");
  Attach("b");
  EXPECT_EQ(Job(job).state, JobState::kQueued);
  EXPECT_THAT(Job(job).members, IsEmpty());

  Attach("c");
  EXPECT_TRUE(Placed(job));
  EXPECT_EQ(Job(job).members.size(), 3u);
}

TEST_F(PlacementTest, AJobTakesUpToMaxWorkersAndLeavesTheRest) {
  for (const char* name : {"a", "b", "c", "d", "e"}) Attach(name);
  const JobId job = Submit({.min_workers = 2, .max_workers = 3});
  EXPECT_EQ(Job(job).members.size(), 3u);
  const JobId next = Submit({.min_workers = 1, .max_workers = 9});
  EXPECT_EQ(Job(next).members.size(), 2u);
}

TEST_F(PlacementTest, NoMoreWorkersThanMicroBatches) {
  for (const char* name : {"a", "b", "c", "d"}) Attach(name);
  const JobId job =
      Submit({.min_workers = 1, .max_workers = 4, .micro_batches = 3});
  EXPECT_EQ(Job(job).members.size(), 3u);

  AllTrain(job);
  EXPECT_EQ(Reason(job),
            "of max_workers=4 at most 3 are used: a step has no more "
            "micro-batches");
}

TEST_F(PlacementTest, NothingIsSaidWhereAllWorkersAreOfUse) {
  for (const char* name : {"a", "b"}) Attach(name);
  const JobId job =
      Submit({.min_workers = 1, .max_workers = 3, .micro_batches = 3});

  AllTrain(job);
  EXPECT_EQ(Reason(job), "");
}

TEST_F(PlacementTest, OnlyAReadyWorkerIsPlaced) {
  Player& a = Introduce("a");
  a.status.trainer_ready = false;
  a.Hello();
  const JobId job = Submit({});
  EXPECT_EQ(Job(job).state, JobState::kQueued);
  EXPECT_EQ(Reason(job), "needs 1 worker: 1 is present, 0 free; a (starting)");

  a.status.trainer_ready = true;
  a.Beat();
  EXPECT_TRUE(Placed(job));
}

TEST_F(PlacementTest, AWorkerWhoseStreamBrokeIsNotPlaced) {
  Player& a = Attach("a");
  a.Breaks();
  const JobId job = Submit({});
  EXPECT_EQ(Job(job).state, JobState::kQueued);
  EXPECT_THAT(Reason(job), HasSubstr("a (its stream broke)"));

  a.Hello();
  EXPECT_TRUE(Placed(job));
}

TEST_F(PlacementTest, AWorkerIsNotPlacedBeforeItAcknowledgedItsRelease) {
  Player& a = Attach("a");
  const JobId first = Submit({});
  a.Obeys();
  ASSERT_TRUE(Cancel(first).ok());
  const JobId second = Submit({});

  a.status.held.reset();  // Let go by itself: the Release is still on its way.
  a.Beat();
  EXPECT_FALSE(Placed(second));
  a.Obeys();
  EXPECT_TRUE(Placed(second));
}

// ------------------------------------------------------------------- queue

TEST_F(PlacementTest, JobsArePlacedByPriorityThenAge) {
  const JobId low = Submit({.priority = -1});
  const JobId first = Submit({});
  const JobId second = Submit({});
  const JobId high = Submit({.priority = 5});
  Attach("a");

  for (const JobId& job : {high, first, second, low}) {
    EXPECT_TRUE(Placed(job)) << job;
    Release(job);
  }
}

TEST_F(PlacementTest, TheQueueOutlivesTheCoordinator) {
  const JobId low = Submit({.priority = -1});
  const JobId first = Submit({});
  const JobId high = Submit({.priority = 5});
  Restart();
  const JobId second = Submit({});
  Attach("a");

  for (const JobId& job : {high, first, second, low}) {
    EXPECT_TRUE(Placed(job)) << job;
    Release(job);
  }
}

TEST_F(PlacementTest, ARecoveringJobKeepsItsPlaceInTheQueue) {
  Player& a = Attach("a");
  const JobId first = Submit({});
  AllTrain(first);
  const JobId second = Submit({});
  Player& b = Attach("b");
  ASSERT_THAT(Job(second).members, ElementsAre(b.id()));
  const JobId third = Submit({});

  a.Fails(Failure::Cause::kPeer, "x");
  // Its worker is its own until it has been placed again.
  b.Obeys().Joins();
  Release(second);
  EXPECT_FALSE(Placed(third));
  EXPECT_EQ(Reason(third), "waiting behind jobs/" + first.value);

  a.Obeys();
  EXPECT_TRUE(Placed(first));
  EXPECT_TRUE(Placed(third));
}

TEST_F(PlacementTest, NobodyOvertakesAJobForWhichEnoughWorkersArePresent) {
  Attach("a");
  const JobId running = Submit({});
  Attach("b");
  const JobId big = Submit({.min_workers = 2});
  const JobId small = Submit({});

  EXPECT_FALSE(Placed(big));
  EXPECT_FALSE(Placed(small));
  EXPECT_THAT(Reason(big), AllOf(HasSubstr("needs 2 workers: 2 are present, "
                                           "1 free"),
                                 HasSubstr("a (jobs/" + running.value + ")")));
  EXPECT_EQ(Reason(small), "waiting behind jobs/" + big.value);

  player(WorkerId{"a"}).Obeys();
  Release(running);
  EXPECT_TRUE(Placed(big));
  EXPECT_FALSE(Placed(small));
}

TEST_F(PlacementTest, AHigherPriorityGoesAheadOfOneThatWaits) {
  Attach("a");
  const JobId running = Submit({});
  const JobId low = Submit({});
  const JobId high = Submit({.priority = 1});
  EXPECT_EQ(Reason(low), "waiting behind jobs/" + high.value);

  player(WorkerId{"a"}).Obeys();
  Release(running);

  EXPECT_TRUE(Placed(high));
  EXPECT_FALSE(Placed(low));
}

TEST_F(PlacementTest, AJobForWhichTooFewWorkersExistHoldsUpNobody) {
  Attach("a");
  const JobId big = Submit({.min_workers = 2, .priority = 9});
  EXPECT_EQ(Reason(big), "needs 2 workers: 1 is present, 1 free");

  const JobId small = Submit({});

  EXPECT_TRUE(Placed(small));
  EXPECT_THAT(Reason(big), HasSubstr("a (jobs/" + small.value + ")"));
}

TEST_F(PlacementTest, AJobForWhichTooFewWorkersExistSaysSoWhereverItStands) {
  Attach("a");
  Submit({});
  const JobId waiting = Submit({});
  const JobId big = Submit({.min_workers = 2});

  EXPECT_THAT(Reason(waiting), HasSubstr("needs 1 worker: 1 is present"));
  EXPECT_THAT(Reason(big), HasSubstr("needs 2 workers: 1 is present"));
}

TEST_F(PlacementTest, WithNoWorkersTheReasonSaysSo) {
  EXPECT_EQ(Reason(Submit({.min_workers = 2})),
            "needs 2 workers: 0 are present");
}

// A worker is believed alive for its lease: a stream that breaks for a moment
// lets nobody overtake.
TEST_F(PlacementTest, ASuspectWorkerCountsAsPresentUntilItIsLost) {
  Player& a = Attach("a");
  Attach("b");
  a.Breaks();
  const JobId big = Submit({.min_workers = 2});
  const JobId small = Submit({});
  EXPECT_FALSE(Placed(small));

  a.Hello();
  EXPECT_TRUE(Placed(big));
}

TEST_F(PlacementTest, WhenASuspectWorkerIsLostOthersGoAhead) {
  Player& a = Attach("a");
  Player& b = Attach("b");
  a.Breaks();
  const JobId big = Submit({.min_workers = 2});
  const JobId small = Submit({});

  Pass(options().lease - kInstant);
  b.Beat();
  EXPECT_FALSE(Placed(small));
  Pass(kInstant);
  Tick();

  EXPECT_TRUE(Placed(small));
  EXPECT_FALSE(Placed(big));
}

TEST_F(PlacementTest, AWorkerThatIsHeldBackStillCountsAsPresent) {
  Player& a = Attach("a");
  const JobId big = Submit({});
  a.Obeys().Fails(Failure::Cause::kWorker, "x").Obeys();
  const JobId small = Submit({});
  EXPECT_THAT(Reason(big), HasSubstr("a (held back after a failure)"));
  EXPECT_EQ(Reason(small), "waiting behind jobs/" + big.value);
  PassTicking(options().worker_backoff);
  EXPECT_TRUE(Placed(big));
}

// ------------------------------------------------------------------ classes

TEST_F(PlacementTest, AJobNeverMixesNumericClasses) {
  Attach("a", "cpu/x");
  Attach("b", "cpu/y");
  const JobId job = Submit({.min_workers = 2});
  EXPECT_EQ(Reason(job), "needs 2 workers of one class: 1 is present, 1 free");

  Player& c = Attach("c", "cpu/y");

  EXPECT_THAT(Job(job).members,
              ElementsAre(player(WorkerId{"b"}).id(), c.id()));
  EXPECT_EQ(Job(job).numeric_class, "cpu/y");
}

TEST_F(PlacementTest, AJobInBfloat16GetsWorkersThatCan) {
  Attach("a", "cpu/avx2");
  Attach("b", "cpu/avx2");
  const JobId job = Submit({.min_workers = 2, .bfloat16 = true});
  EXPECT_EQ(Reason(job),
            "needs 2 workers with bfloat16 (AVX-512): 0 are present");
  // Nor does it hold up who can use them.
  EXPECT_TRUE(Placed(Submit({.min_workers = 2})));

  Attach("c", "cpu/bf16");
  EXPECT_EQ(Reason(job),
            "needs 2 workers of one class with bfloat16 (AVX-512): 1 is "
            "present, 1 free");
  Attach("d", "cpu/bf16");
  EXPECT_EQ(Job(job).numeric_class, "cpu/bf16");

  // A coordinator that starts again still knows.
  Restart();
  Attach("e", "cpu/avx2");
  const JobId again = Submit({.bfloat16 = true});
  EXPECT_FALSE(Placed(again));
}

TEST_F(PlacementTest, TheClassThatOffersMostIsTaken) {
  Attach("a", "cpu/x");
  Attach("b", "cpu/y");
  Attach("c", "cpu/y");
  EXPECT_EQ(Job(Submit({.max_workers = 2})).numeric_class, "cpu/y");
}

TEST_F(PlacementTest, OfEqualClassesTheFirstByNameIsTaken) {
  Attach("a", "cpu/y");
  Attach("b", "cpu/x");
  EXPECT_EQ(Job(Submit({})).numeric_class, "cpu/x");
}

TEST_F(PlacementTest, AJobKeepsTheClassOfItsFirstGeneration) {
  Player& a = Attach("a", "cpu/x");
  const JobId job = Submit({});
  AllTrain(job);
  Attach("b", "cpu/y");
  a.Leaves();

  EXPECT_EQ(Job(job).state, JobState::kRecovering);
  EXPECT_THAT(Reason(job),
              HasSubstr("needs 1 worker of class cpu/x: 0 are present"));
  Restart();
  player(WorkerId{"b"}).Hello();
  EXPECT_FALSE(Placed(job));
  Attach("c", "cpu/x");
  EXPECT_TRUE(Placed(job));
  EXPECT_EQ(Job(job).numeric_class, "cpu/x");
}

TEST_F(PlacementTest, TheReasonNamesOnlyWorkersOfTheClass) {
  Player& a = Attach("a", "cpu/x");
  Attach("b", "cpu/x");
  const JobId job = Submit({.min_workers = 2});
  AllTrain(job);
  Attach("c", "cpu/y");
  Submit({});  // Takes c.
  Attach("d", "cpu/x");
  const JobId other = Submit({});  // Takes d.
  a.Leaves();
  player(WorkerId{"b"}).Obeys();

  EXPECT_THAT(Reason(job),
              AllOf(HasSubstr("needs 2 workers of class cpu/x: 2 are present, "
                              "1 free; d (jobs/" +
                              other.value + ")"),
                    Not(HasSubstr("c ("))));
}

TEST_F(PlacementTest, AJobThatWaitsForOneClassDoesNotHoldUpAnother) {
  Player& a = Attach("a", "cpu/x");
  const JobId bound = Submit({});  // To cpu/x.
  AllTrain(bound);
  a.Fails(Failure::Cause::kWorker, "x").Obeys();
  ASSERT_THAT(Reason(bound), HasSubstr("held back"));

  const JobId next = Submit({});
  EXPECT_EQ(Reason(next), "waiting behind jobs/" + bound.value);
  Player& b = Attach("b", "cpu/y");

  EXPECT_THAT(Job(next).members, ElementsAre(b.id()));
}

TEST_F(PlacementTest, AJobThatMayTakeAnyClassHoldsUpThoseThatSuffice) {
  Attach("a", "cpu/x");
  const JobId running = Submit({});
  Attach("b", "cpu/x");
  // Two of cpu/x would do, one of cpu/y does not: cpu/y is nothing to wait for.
  const JobId big = Submit({.min_workers = 2});
  const JobId small = Submit({});
  EXPECT_FALSE(Placed(small));

  Player& c = Attach("c", "cpu/y");
  EXPECT_THAT(Job(small).members, ElementsAre(c.id()));
  EXPECT_FALSE(Placed(big));
  player(WorkerId{"a"}).Obeys();
  Release(running);
  EXPECT_TRUE(Placed(big));
}

// ------------------------------------------------------------------ memory

class MemoryTest : public PlacementTest {
 protected:
  // A worker with so much memory and so many threads.
  Player& AttachWith(const std::string& name, int64_t memory_bytes,
                     int threads = 1,
                     const std::string& numeric_class = "cpu/x") {
    Player& player = Introduce(name, numeric_class);
    player.device.memory_bytes = memory_bytes;
    player.device.thread_count = threads;
    return player.Hello();
  }

  // 90 for stage 0, then 70, 50, 30; with workspace of 10, or 2 a thread.
  const MemoryNeeds needs_ = {.stage_bytes = {90, 70, 50, 30},
                              .workspace_bytes = 10,
                              .thread_workspace_bytes = 2};
};

TEST_F(MemoryTest, AJobThatNamesNoStageGetsTheLowestThatMinWorkersHold) {
  const struct {
    int64_t memory_bytes;
    int stage;
  } kCases[] = {{100, 0}, {99, 1}, {80, 1}, {79, 2}, {60, 2}, {59, 3}, {40, 3}};
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.memory_bytes);
    Player& large = AttachWith(absl::StrCat("large-", c.memory_bytes), 1000);
    Player& small =
        AttachWith(absl::StrCat("small-", c.memory_bytes), c.memory_bytes);
    const JobId job = Submit(
        {.min_workers = 2, .memory = needs_, .zero_stage = std::nullopt});

    EXPECT_TRUE(Placed(job));
    EXPECT_EQ(Job(job).zero_stage, c.stage);
    EXPECT_EQ(large.last<Prepare>().zero_stage, c.stage);
    EXPECT_EQ(small.last<Prepare>().zero_stage, c.stage);
    Release(job);
    large.Leaves();
    small.Leaves();
  }
}

TEST_F(MemoryTest, TheStageThatIsChosenFollowsTheWorkers) {
  Player& a = AttachWith("a", 60);
  const JobId job = Submit({.memory = needs_, .zero_stage = std::nullopt});
  const JobId fixed = Submit({.memory = needs_, .zero_stage = 2});
  EXPECT_EQ(Job(job).zero_stage, 2);
  a.Leaves();

  Player& b = AttachWith("b", 40);
  EXPECT_EQ(Job(job).generation, 2);
  EXPECT_EQ(Job(job).zero_stage, 3);
  EXPECT_EQ(b.last<Prepare>().zero_stage, 3);
  b.Leaves();

  AttachWith("c", 1000);
  EXPECT_EQ(Job(job).generation, 3);
  EXPECT_EQ(Job(job).zero_stage, 0);
  Release(job);
  EXPECT_TRUE(Placed(fixed));
  EXPECT_EQ(Job(fixed).zero_stage, 2);
  Restart();
  EXPECT_EQ(Job(fixed).zero_stage, 2);
}

TEST_F(MemoryTest, WorkersThatDoNotHoldAJobAreNotPlaced) {
  AttachWith("a", 99);
  AttachWith("b", 100);
  AttachWith("c", 100, /*threads=*/5);
  AttachWith("d", 100, /*threads=*/6);
  const JobId job =
      Submit({.min_workers = 1, .max_workers = 4, .memory = needs_});

  EXPECT_THAT(Job(job).members, ElementsAre(WorkerId{"b"}, WorkerId{"c"}));
  // The others are free for whoever fits.
  const JobId next = Submit({.min_workers = 1, .max_workers = 4});
  EXPECT_THAT(Job(next).members, ElementsAre(WorkerId{"a"}, WorkerId{"d"}));
}

TEST_F(MemoryTest, AJobThatWaitsForLargerWorkersSaysSoAndHoldsUpNobody) {
  AttachWith("a", 100);
  AttachWith("b", 39);
  const JobId job =
      Submit({.min_workers = 2, .memory = needs_, .zero_stage = std::nullopt});

  EXPECT_EQ(Job(job).state, JobState::kQueued);
  EXPECT_EQ(Reason(job),
            "needs 2 workers with 100 B of memory (ZeRO stage 0): 1 is "
            "present, 1 free");
  EXPECT_TRUE(Placed(Submit({.min_workers = 2})));
}

TEST_F(MemoryTest, AJobThatNoWorkerHoldsIsRefused) {
  const JobRequest request = {
      .min_workers = 2, .memory = needs_, .zero_stage = std::nullopt};
  AttachWith("a", 39);
  // Others may come.
  EXPECT_TRUE(TrySubmit(request, "early", "spec").ok());

  AttachWith("b", 39);
  const absl::Status refused = TrySubmit(request, "late", "spec").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the plan"));
  // What was accepted stays so.
  EXPECT_TRUE(TrySubmit(request, "early", "spec").ok());

  AttachWith("c", 40);
  EXPECT_TRUE(TrySubmit(request, "late", "spec").ok());
  JobRequest fixed = request;
  fixed.zero_stage = 2;
  EXPECT_FALSE(TrySubmit(fixed, "fixed", "spec").ok());
}

TEST_F(MemoryTest, WhereMemoryIsNotKnownEverythingFits) {
  AttachWith("a", 0);
  EXPECT_TRUE(Placed(Submit({.memory = needs_})));
  AttachWith("b", 1);
  const JobId unknown = Submit({.zero_stage = std::nullopt});
  EXPECT_TRUE(Placed(unknown));
  EXPECT_EQ(Job(unknown).zero_stage, 0);
}

}  // namespace
}  // namespace lockstep
