#include "worker/parallel/reduction_plan.h"

#include <set>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

Layout SmallLayout(bool tied = true) {
  ModelConfig c;
  c.vocabulary = 37;
  c.position_max = 9;
  c.width = 12;
  c.layer_count = 2;
  c.SetPlainHeads(2);
  c.inner_width = 20;
  c.tied_head = tied;
  return MakeLayout(c);
}

TEST(ReductionPlanTest, UnitsAreReducedInReverseAndCoverTheFlatSpaceOnce) {
  const Layout layout = SmallLayout();
  for (const int64_t bucket_elements : {16, 100, 256, 1 << 20}) {
    const ReductionPlan plan = MakeReductionPlan(layout, bucket_elements);

    int last_unit = static_cast<int>(layout.units.size()) - 1;
    std::set<int64_t> seen;
    for (const Bucket& b : plan.buckets) {
      EXPECT_LE(b.unit, last_unit);
      last_unit = b.unit;
      for (int64_t i = 0; i < b.range.element_count; ++i) {
        EXPECT_TRUE(seen.insert(b.range.offset + i).second);
      }
    }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), layout.element_count);
    for (size_t u = 0; u < layout.units.size(); ++u) {
      EXPECT_GT(plan.bucket_count[u], 0);
      EXPECT_EQ(plan.buckets[plan.first_bucket[u]].range.offset,
                layout.units[u].range.offset);
    }
  }
}

TEST(ReductionPlanTest, EveryTensorElementIsMeasuredByExactlyOneRank) {
  const Layout layout = SmallLayout();
  for (const int64_t bucket_elements : {16, 100, 1 << 20}) {
    const ReductionPlan plan = MakeReductionPlan(layout, bucket_elements);
    for (const int world : {1, 2, 3, 5}) {
      std::vector<int> counted(layout.element_count);
      for (int rank = 0; rank < world; ++rank) {
        for (const TensorPiece& p :
             ShardsOf(layout, plan, rank, world).pieces) {
          const Tensor& t = layout.tensors[p.tensor];
          EXPECT_GE(p.range.offset, t.offset);
          EXPECT_LE(p.range.offset + p.range.element_count,
                    t.offset + t.element_count);
          for (int64_t i = 0; i < p.range.element_count; ++i) {
            ++counted[p.range.offset + i];
          }
        }
      }
      for (const Tensor& t : layout.tensors) {
        for (int64_t i = 0; i < t.element_count; ++i) {
          EXPECT_EQ(counted[t.offset + i]--, 1) << t.name << " " << i;
        }
      }
      for (const int padding : counted) EXPECT_EQ(padding, 0);
    }
  }
}

TEST(ReductionPlanTest, ARanksSpaceHoldsItsShardsInFlatOrder) {
  const Layout layout = SmallLayout();
  for (const int64_t bucket_elements : {16, 100, 1 << 20}) {
    const ReductionPlan plan = MakeReductionPlan(layout, bucket_elements);
    int64_t of_all = 0;
    for (int rank = 0; rank < 3; ++rank) {
      const OwnedShards owned = ShardsOf(layout, plan, rank, 3);
      of_all += owned.element_count;
      std::set<int64_t> taken;
      for (size_t b = 0; b < plan.buckets.size(); ++b) {
        EXPECT_EQ(owned.shards[b], ShardOf(plan.buckets[b].range, rank, 3));
        for (int64_t i = 0; i < owned.shards[b].element_count; ++i) {
          EXPECT_TRUE(taken.insert(owned.offsets[b] + i).second);
        }
      }
      EXPECT_EQ(std::ssize(taken), owned.element_count);
      EXPECT_TRUE(taken.empty() || *taken.rbegin() == owned.element_count - 1);
      int64_t flat = -1, compact = -1;
      for (const TensorPiece& p : owned.pieces) {
        EXPECT_GT(p.range.offset, flat);
        EXPECT_GT(p.owned_offset, compact);
        flat = p.range.offset + p.range.element_count - 1;
        compact = p.owned_offset + p.range.element_count - 1;
      }
    }
    EXPECT_EQ(of_all, layout.element_count);
    for (const TensorPiece& p : ShardsOf(layout, plan, 0, 1).pieces) {
      EXPECT_EQ(p.owned_offset, p.range.offset);
    }
  }
}

TEST(ReductionPlanTest, UnitsThatAreNeededTogetherHaveSlotsOfTheirOwn) {
  for (const bool tied : {true, false}) {
    const Layout layout = SmallLayout(tied);
    const int head = static_cast<int>(layout.units.size()) - 1;
    for (int u = 1; u + 1 < head; ++u) {
      EXPECT_NE(SlotOfUnit(layout, u), SlotOfUnit(layout, u + 1));
    }
    if (tied) {
      EXPECT_NE(SlotOfUnit(layout, head), SlotOfUnit(layout, 0));
    }
    const auto sizes = SlotSizes(layout);
    for (int u = 0; u <= head; ++u) {
      EXPECT_GE(sizes[SlotOfUnit(layout, u)],
                layout.units[u].range.element_count);
      if (0 < u && u < head) {
        EXPECT_NE(SlotOfUnit(layout, u), SlotOfUnit(layout, 0));
        EXPECT_NE(SlotOfUnit(layout, u), SlotOfUnit(layout, head));
      }
    }
  }
}

TEST(ReductionPlanTest, TheDigestFollowsWhatRanksMustAgreeOn) {
  const Layout layout = SmallLayout();
  const ReductionPlan plan = MakeReductionPlan(layout, 256);
  const ExactScale scale = {.micro_batch_count = 8,
                            .nominal_token_count = 1024};
  const StageDigestInput stage = {.zero_stage = 1, .round_count = 3};
  const InputDigests kInputs = {
      .spec = "spec", .data = "data", .weights = "weights"};
  const PlanDigest base =
      DigestOf(layout, plan, stage, scale, "cpu/avx2", kInputs);

  EXPECT_EQ(DigestOf(layout, plan, stage, scale, "cpu/avx2", kInputs).whole,
            base.whole);
  const auto differs_in = [&](const PlanDigest& other, int part) {
    EXPECT_NE(other.whole, base.whole);
    for (int i = 0; i < PlanDigest::kPartCount; ++i) {
      EXPECT_EQ(other.parts[i] != base.parts[i], i == part) << i;
    }
  };
  const Layout untied = SmallLayout(/*tied=*/false);
  EXPECT_NE(DigestOf(untied, plan, stage, scale, "cpu/avx2", kInputs).parts[0],
            base.parts[0]);
  differs_in(DigestOf(layout, MakeReductionPlan(layout, 512), stage, scale,
                      "cpu/avx2", kInputs),
             1);
  differs_in(DigestOf(layout, plan, stage,
                      {.micro_batch_count = 9, .nominal_token_count = 1024},
                      "cpu/avx2", kInputs),
             1);
  for (const StageDigestInput& other :
       {StageDigestInput{.zero_stage = 2, .round_count = 3},
        StageDigestInput{.zero_stage = 1, .round_count = 4}}) {
    differs_in(DigestOf(layout, plan, other, scale, "cpu/avx2", kInputs), 2);
  }
  differs_in(DigestOf(layout, plan, stage, scale, "cpu/avx512", kInputs), 3);
  differs_in(DigestOf(layout, plan, stage, scale, "cpu/avx2",
                      {.spec = "other", .data = "data", .weights = "weights"}),
             5);
  differs_in(DigestOf(layout, plan, stage, scale, "cpu/avx2",
                      {.spec = "spec", .data = "other", .weights = "weights"}),
             PlanDigest::kDataPart);
  differs_in(DigestOf(layout, plan, stage, scale, "cpu/avx2",
                      {.spec = "spec", .data = "data", .weights = "other"}),
             7);
}

}  // namespace
}  // namespace lockstep
