#include "common/memory_plan.h"

#include "common/kernel_workspace.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using enum MemoryItem;

ModelConfig Small(ModelFamily family = ModelFamily::kGpt2) {
  ModelConfig c;
  c.family = family;
  c.vocabulary = 37;
  c.position_max = 9;
  c.width = 12;
  c.layer_count = 3;
  c.SetPlainHeads(2);
  c.inner_width = 20;
  return c;
}

TrainingShape Shape(int stage, int rank, int world, bool bfloat16 = false) {
  return {.decoder = {.rows = 2,
                      .sequence_length = 7,
                      .bfloat16 = bfloat16,
                      .thread_count = 2},
          .bucket_bytes = 1024,
          .zero_stage = stage,
          .rank = rank,
          .world = world};
}

MemoryPlan Plan(const ModelConfig& config, const TrainingShape& shape) {
  return PlanMemory(config, MakeLayout(config), shape);
}

TEST(MemoryPlanTest, StateOfAWorldOfOneIsThatOfTheFlatSpace) {
  for (const bool bfloat16 : {false, true}) {
    const int64_t n = MakeLayout(Small()).element_count;
    const MemoryPlan plan = Plan(Small(), Shape(0, 0, 1, bfloat16));

    EXPECT_EQ(plan[kParameters], 4 * n);
    EXPECT_EQ(plan[kRounded], bfloat16 ? 2 * n : 0);
    EXPECT_EQ(plan[kAccumulators], 8 * n);
    EXPECT_EQ(plan[kOptimizer], 8 * n);
    EXPECT_EQ(plan[kGatheredUnits], 0);
    EXPECT_EQ(plan[kStagingUnits], 0);
    EXPECT_EQ(plan.load_device_bytes, plan[kParameters] + plan[kRounded]);
  }
}

TEST(MemoryPlanTest, WhatIsShardedAddsUpToTheWhole) {
  const ModelConfig config = Small(ModelFamily::kLlama);
  const int64_t n = MakeLayout(config).element_count;
  for (int world = 1; world <= 9; ++world) {
    for (int stage = 0; stage <= kZeroStageMax; ++stage) {
      MemoryPlan sum;
      for (int rank = 0; rank < world; ++rank) {
        const MemoryPlan plan = Plan(config, Shape(stage, rank, world));
        for (int i = 0; i < kMemoryItemCount; ++i) {
          sum.bytes[i] += plan.bytes[i];
        }
      }
      EXPECT_EQ(sum[kParameters], 4 * n * (stage >= 3 ? 1 : world));
      EXPECT_EQ(sum[kAccumulators], 8 * n * (stage >= 2 ? 1 : world));
      EXPECT_EQ(sum[kOptimizer], 8 * n * (stage >= 1 ? 1 : world));
    }
  }
}

TEST(MemoryPlanTest, WhatIsOwnedIsWhatTheShardsAre) {
  const Layout layout = MakeLayout(Small(ModelFamily::kLlama));
  for (const int64_t bucket_elements : {16, 100, 256, 1 << 20}) {
    const ReductionPlan buckets = MakeReductionPlan(layout, bucket_elements);
    for (int world = 1; world <= 5; ++world) {
      for (int rank = 0; rank < world; ++rank) {
        EXPECT_EQ(OwnedElementCount(layout, bucket_elements, rank, world),
                  ShardsOf(layout, buckets, rank, world).element_count);
      }
    }
  }
}

TEST(MemoryPlanTest, RankZeroNeedsTheMost) {
  for (int world = 2; world <= 9; ++world) {
    for (int stage = 0; stage <= kZeroStageMax; ++stage) {
      const MemoryPlan first = Plan(Small(), Shape(stage, 0, world));
      for (int rank = 1; rank < world; ++rank) {
        const MemoryPlan plan = Plan(Small(), Shape(stage, rank, world));
        EXPECT_LE(plan.device_bytes, first.device_bytes);
        EXPECT_LE(plan.peak_bytes(), first.peak_bytes());
      }
    }
  }
}

TEST(MemoryPlanTest, RecomputeKeepsTheInputsOfBlocksAlone) {
  TrainingShape shape = Shape(0, 0, 1);
  const MemoryPlan kept = Plan(Small(), shape);
  shape.decoder.recomputes_blocks = true;
  const MemoryPlan recomputed = Plan(Small(), shape);

  // Of 14 tokens, for two of the three blocks: norms, query, key and value,
  // attention, its sums for two heads, middle, and the feed-forward part, each
  // from a multiple of 64 bytes.
  const auto array = [](int64_t width) {
    return (14 * 4 * width + 63) / 64 * 64;
  };
  EXPECT_EQ(kept[kActivations] - recomputed[kActivations],
            2 * (4 * array(1) + 2 * array(12) + array(36) + array(12) +
                 array(2) + array(12) + 2 * array(20)));
}

TEST(MemoryPlanTest, AttentionsWorkspaceGrowsWithThreads) {
  ModelConfig config = Small();
  config.position_max = 2000;
  TrainingShape shape = Shape(0, 0, 1);
  shape.decoder.sequence_length = 2000;
  for (const int threads : {1, 3}) {
    shape.decoder.thread_count = threads;
    EXPECT_EQ(Plan(config, shape)[kWorkspace],
              threads * 4 * workspace::Attention(2000, 6).count());
  }
}

}  // namespace
}  // namespace lockstep
