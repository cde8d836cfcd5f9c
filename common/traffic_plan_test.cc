#include "common/traffic_plan.h"

#include "gtest/gtest.h"

namespace lockstep {
namespace {

// Units of which all buckets split evenly over 2 ranks.
Layout EvenLayout(bool tied = true) {
  ModelConfig c;
  c.family = ModelFamily::kLlama;
  c.vocabulary = 64;
  c.position_max = 64;
  c.width = 128;
  c.layer_count = 5;
  c.SetPlainHeads(4);
  c.inner_width = 256;
  c.tied_head = tied;
  return MakeLayout(c);
}

constexpr int64_t kBucketElements = 8192;

TrafficPlan Plan(const Layout& layout, TrafficShape shape) {
  shape.bucket_elements = kBucketElements;
  return PlanTraffic(layout, shape);
}

TEST(TrafficPlanTest, AWorldOfOneSendsNothing) {
  for (int stage = 0; stage <= kZeroStageMax; ++stage) {
    const TrafficPlan plan =
        Plan(EvenLayout(), {.zero_stage = stage, .round_count = 3});

    EXPECT_EQ(plan.total_bytes(), 0);
    EXPECT_EQ(plan.wide_reduction_bytes, 0);
  }
}

TEST(TrafficPlanTest, AtStageZeroAnElementIsSentTwiceButForTheOwnPart) {
  const Layout layout = EvenLayout();
  const ReductionPlan buckets = MakeReductionPlan(layout, kBucketElements);
  const TrafficPlan plan = Plan(layout, {.world = 2});

  // 4 bytes an element, or 8; and one word a bucket, in one round.
  const int64_t n = layout.element_count;
  const auto proof = static_cast<int64_t>(buckets.buckets.size()) * 8;
  EXPECT_EQ(plan.reduction_bytes, 4 * n + proof);
  EXPECT_EQ(plan.wide_reduction_bytes, 8 * n + proof);
  EXPECT_EQ(plan.gather_bytes, 0);
}

TEST(TrafficPlanTest, StageOneMovesHalfOfTheReductionToTheGather) {
  const TrafficPlan zero = Plan(EvenLayout(), {.world = 2});
  const TrafficPlan one = Plan(EvenLayout(), {.zero_stage = 1, .world = 2});

  EXPECT_EQ(one.reduction_bytes + one.gather_bytes, zero.reduction_bytes);
  EXPECT_EQ(one.commit_bytes, zero.commit_bytes);
}

TEST(TrafficPlanTest, FromStageTwoOnEveryRoundIsReduced) {
  const TrafficPlan one = Plan(EvenLayout(), {.zero_stage = 1, .world = 2});
  for (const int stage : {2, 3}) {
    const TrafficPlan plan =
        Plan(EvenLayout(), {.zero_stage = stage, .world = 2, .round_count = 5});

    EXPECT_EQ(plan.reduction_bytes, 5 * one.reduction_bytes);
    EXPECT_EQ(plan.wide_reduction_bytes, 5 * one.wide_reduction_bytes);
  }
}

TEST(TrafficPlanTest, AtStageThreeUnitsThatAreStillThereAreNotGatheredAgain) {
  const Layout layout = EvenLayout();
  const auto half = [&](int unit) {
    return layout.units[unit].range.element_count * 4 / 2;
  };
  const auto plan = [&](int64_t rounds) {
    return Plan(layout, {.zero_stage = 3,
                         .world = 2,
                         .round_count = rounds,
                         .tied_head = true});
  };
  // Forward has all seven units; backward finds the last two blocks, the head
  // and the embedding still there.
  const int64_t first = half(0) + 5 * half(1) + half(6) + 3 * half(1);

  EXPECT_EQ(plan(1).gather_bytes, first);
  // A later forward finds all of them and the first two blocks.
  EXPECT_EQ(plan(4).gather_bytes, first + 3 * (3 * half(1) + 3 * half(1)));
}

TEST(TrafficPlanTest, AHeadWithAWeightTakesTheEmbeddingsPlace) {
  const Layout layout = EvenLayout(/*tied=*/false);
  const auto half = [&](int unit) {
    return layout.units[unit].range.element_count * 4 / 2;
  };
  const TrafficPlan plan =
      Plan(layout, {.zero_stage = 3, .world = 2, .round_count = 2});

  EXPECT_EQ(plan.gather_bytes,
            2 * (half(0) + half(6)) + 8 * half(1) + 6 * half(1));
}

}  // namespace
}  // namespace lockstep
