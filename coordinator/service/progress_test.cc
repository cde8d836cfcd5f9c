#include "coordinator/service/progress.h"

#include <cmath>

#include "common/time_proto.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

v1::StepMetrics Row(int64_t generation, int64_t step, int rank, double loss,
                    double milliseconds = 100) {
  v1::StepMetrics row;
  row.set_generation(generation);
  row.set_step(step);
  row.set_rank(rank);
  row.set_loss(loss);
  row.set_token_count(1000);
  *row.mutable_step_duration() =
      DurationToProto(absl::Milliseconds(milliseconds));
  return row;
}

JobRecord Running(int64_t generation, int64_t committed, int64_t max_steps) {
  JobRecord record;
  record.state = JobState::kRunning;
  record.generation = generation;
  record.committed_step_count = committed;
  record.max_steps = max_steps;
  return record;
}

TEST(ProgressTest, BeforeTheFirstStepAllIsUnset) {
  const ProgressTracker tracker;

  EXPECT_EQ(tracker.Progress(Running(1, 0, 10), 1000).ByteSizeLong(), 0u);
}

TEST(ProgressTest, TheFirstReportOfAStepCountsWhicheverRankItIsOf) {
  ProgressTracker tracker;
  EXPECT_TRUE(tracker.Add(Row(1, 0, 1, 5)));
  EXPECT_FALSE(tracker.Add(Row(1, 0, 0, 5)));
  EXPECT_TRUE(tracker.Add(Row(1, 1, 0, 4)));
  EXPECT_FALSE(tracker.Add(Row(1, 1, 0, 4)));  // Sent again.

  const v1::JobProgress progress = tracker.Progress(Running(1, 2, 10), 1000);

  EXPECT_EQ(progress.step_count(), 2);
  EXPECT_EQ(progress.max_steps(), 10);
  EXPECT_EQ(progress.token_count(), 2000);
  EXPECT_EQ(progress.loss(), 4);
  EXPECT_DOUBLE_EQ(progress.tokens_per_second(), 10'000);
  EXPECT_EQ(DurationFromProto(progress.remaining()), absl::Milliseconds(800));
  EXPECT_FALSE(progress.has_held_out_loss());
}

TEST(ProgressTest, WhatAnyRankCouldNotSaveIsSaidUntilALaterCheckpoint) {
  ProgressTracker tracker;
  const auto add = [&](int64_t step, int rank, int64_t complete,
                       const std::string& failure) {
    v1::StepMetrics row = Row(1, step, rank, 5);
    row.set_worker(rank == 0 ? "workers/a" : "workers/b");
    row.set_checkpoint_step_count(complete);
    row.set_checkpoint_failure(failure);
    tracker.Add(row);
    return tracker.Progress(Running(1, 2, 10), 1000);
  };
  EXPECT_EQ(add(10, 0, 10, "").checkpoint_step_count(), 10);

  EXPECT_EQ(add(21, 1, 0, "disk full").checkpoint_failure(),
            "workers/b: disk full");
  // What was complete before says nothing of it.
  EXPECT_EQ(add(21, 0, 10, "").checkpoint_failure(), "workers/b: disk full");
  EXPECT_EQ(add(22, 0, 10, "no name").checkpoint_failure(),
            "workers/a: no name");
  v1::JobProgress progress = add(31, 0, 30, "");
  EXPECT_EQ(progress.checkpoint_failure(), "");
  EXPECT_EQ(progress.checkpoint_step_count(), 30);
  // Sent again.
  EXPECT_EQ(add(21, 1, 0, "disk full").checkpoint_failure(), "");

  // That the one before is complete may come late.
  EXPECT_EQ(add(42, 1, 0, "disk full").checkpoint_failure(),
            "workers/b: disk full");
  progress = add(41, 0, 39, "");
  EXPECT_EQ(progress.checkpoint_failure(), "workers/b: disk full");
  EXPECT_EQ(progress.checkpoint_step_count(), 39);
}

TEST(ProgressTest, TheRateIsOfTheLastSteps) {
  ProgressTracker tracker;
  tracker.Add(Row(1, 0, 0, 5, /*milliseconds=*/60'000));
  for (int step = 1; step <= ProgressTracker::kWindowSteps; ++step) {
    tracker.Add(Row(1, step, 0, 5));
  }

  EXPECT_NEAR(tracker.Progress(Running(1, 33, 100), 1000).tokens_per_second(),
              10'000, 1e-6);
}

TEST(ProgressTest, TheLastEvaluationIsKept) {
  ProgressTracker tracker;
  v1::StepMetrics evaluated = Row(1, 4, 0, 5);
  evaluated.set_held_out_loss(5.5);
  tracker.Add(evaluated);
  tracker.Add(Row(1, 5, 0, 4));
  // Another rank's report of the same evaluation comes late.
  evaluated.set_rank(1);
  EXPECT_FALSE(tracker.Add(evaluated));

  const v1::JobProgress progress = tracker.Progress(Running(1, 6, 10), 1000);

  EXPECT_EQ(progress.held_out_loss(), 5.5);
  EXPECT_EQ(progress.held_out_step_count(), 5);
  EXPECT_EQ(progress.loss(), 4);
}

TEST(ProgressTest, ALaterGenerationBeginsAnewAndAnOlderOneIsOver) {
  ProgressTracker tracker;
  v1::StepMetrics row = Row(1, 7, 0, 3);
  row.set_held_out_loss(3.5);
  tracker.Add(row);

  // Placed again, nothing committed yet: what the old one reached is gone.
  EXPECT_EQ(tracker.Progress(Running(2, 0, 10), 1000).step_count(), 0);
  tracker.Add(Row(2, 0, 0, 5));
  EXPECT_FALSE(tracker.Add(Row(1, 8, 0, 2)));
  const v1::JobProgress progress = tracker.Progress(Running(2, 1, 10), 1000);

  EXPECT_EQ(progress.step_count(), 1);
  EXPECT_EQ(progress.loss(), 5);
  EXPECT_FALSE(progress.has_held_out_loss());
}

TEST(ProgressTest, WhatIsStoredComesBack) {
  ProgressTracker tracker;
  v1::StepMetrics row = Row(3, 7, 0, 3);
  row.set_held_out_loss(3.5);
  tracker.Add(row);

  const ProgressTracker back = ProgressTracker::FromStored(tracker.Serialize());

  EXPECT_EQ(back.Progress(Running(3, 8, 10), 1000).SerializeAsString(),
            tracker.Progress(Running(3, 8, 10), 1000).SerializeAsString());
  // Steps that were reported before the restart, and are sent again.
  ProgressTracker again = back;
  EXPECT_FALSE(again.Add(row));
  EXPECT_EQ(ProgressTracker::FromStored("\xFF")
                .Progress(Running(1, 0, 10), 1000)
                .step_count(),
            0);
}

TEST(ProgressTest, SkippedStepsAreCountedAndTheirLossIsNotShown) {
  ProgressTracker tracker;
  tracker.Add(Row(1, 0, 0, 5));
  v1::StepMetrics row = Row(1, 1, 0, std::nan(""));
  row.set_skipped(true);
  tracker.Add(row);
  row.set_rank(1);
  tracker.Add(row);  // Of the same step.

  const v1::JobProgress progress = tracker.Progress(Running(1, 2, 10), 1000);
  EXPECT_EQ(progress.skipped_step_count(), 1);
  EXPECT_EQ(progress.loss(), 5);
  EXPECT_EQ(progress.step_count(), 2);
}

TEST(ProgressTest, WhereNoStepHadALossThereIsNone) {
  ProgressTracker tracker;
  v1::StepMetrics row = Row(1, 0, 0, std::nan(""));
  row.set_skipped(true);
  tracker.Add(row);
  EXPECT_FALSE(tracker.Progress(Running(1, 1, 10), 1000).has_loss());
  tracker.Add(Row(1, 1, 0, 5));
  EXPECT_EQ(tracker.Progress(Running(1, 2, 10), 1000).loss(), 5);
}

TEST(ProgressTest, LossSpikesAreCountedOnceAStep) {
  ProgressTracker tracker;
  for (int step = 0; step < 4; ++step) {
    for (int rank = 0; rank < 2; ++rank) {
      v1::StepMetrics row = Row(1, step, rank, 5);
      row.set_loss_spike(step == 1 || step == 2);
      tracker.Add(row);
    }
  }

  const v1::JobProgress progress = tracker.Progress(Running(1, 4, 10), 1000);
  EXPECT_EQ(progress.loss_spike_count(), 2);
  EXPECT_EQ(progress.last_loss_spike_step(), 2);
}

// With a mask fewer tokens count than a step has.
TEST(ProgressTest, TheTimeLeftIsThatOfTheSteps) {
  ProgressTracker tracker;
  v1::StepMetrics row = Row(1, 0, 0, 5, /*milliseconds=*/200);
  row.set_token_count(10);
  tracker.Add(row);
  EXPECT_EQ(
      DurationFromProto(tracker.Progress(Running(1, 1, 11), 1000).remaining()),
      absl::Seconds(2));
}

TEST(ProgressTest, NoTimeIsLeftOrKnownUnlessItRuns) {
  ProgressTracker tracker;
  tracker.Add(Row(1, 0, 0, 5));
  JobRecord record = Running(1, 1, 0);
  EXPECT_FALSE(tracker.Progress(record, 1000).has_remaining());
  record = Running(1, 1, 10);
  EXPECT_TRUE(tracker.Progress(record, 1000).has_remaining());
  record.state = JobState::kCancelled;
  EXPECT_FALSE(tracker.Progress(record, 1000).has_remaining());
}

}  // namespace
}  // namespace lockstep
