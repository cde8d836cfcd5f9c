#include "common/layout.h"

#include "gtest/gtest.h"

namespace lockstep {
namespace {

ModelConfig Gpt2Small() {
  ModelConfig c;
  c.vocabulary = 50257;
  c.position_max = 1024;
  c.width = 768;
  c.layer_count = 12;
  c.SetPlainHeads(12);
  c.inner_width = 3072;
  return c;
}

TEST(LayoutTest, CountsTheParametersOfGpt2) {
  const Layout layout = MakeLayout(Gpt2Small());
  EXPECT_EQ(layout.parameter_count, 124'439'808);
  EXPECT_EQ(layout.units.size(), 14u);
  EXPECT_EQ(layout.tensors.size(), 2u + 12 * 12 + 2);

  ModelConfig untied = Gpt2Small();
  untied.tied_head = false;
  EXPECT_EQ(MakeLayout(untied).parameter_count, 124'439'808 + 50257 * 768);
}

TEST(LayoutTest, TensorsAreAlignedDisjointAndInsideTheirUnits) {
  ModelConfig c = Gpt2Small();
  c.vocabulary = 7;
  c.width = 3;
  c.SetPlainHeads(1);
  c.inner_width = 5;
  c.layer_count = 2;
  c.tied_head = false;
  const Layout layout = MakeLayout(c);

  int64_t end = 0;
  for (size_t i = 0; i < layout.tensors.size(); ++i) {
    const Tensor& t = layout.tensors[i];
    EXPECT_EQ(t.offset % kTensorAlignment, 0) << t.name;
    EXPECT_GE(t.offset, end) << t.name;
    EXPECT_LT(t.offset, end + kTensorAlignment) << t.name;
    end = t.offset + t.element_count;
    const Unit& unit = layout.units[t.unit];
    EXPECT_GE(t.offset, unit.range.offset);
    EXPECT_LE(end, unit.range.offset + unit.range.element_count);
    EXPECT_LE(unit.first_tensor, static_cast<int>(i));
    EXPECT_GT(unit.end_tensor, static_cast<int>(i));
    EXPECT_EQ(layout.Find(t.role, t.layer), static_cast<int>(i));
  }
  int64_t unit_end = 0;
  for (const Unit& unit : layout.units) {
    EXPECT_EQ(unit.range.offset, unit_end);
    unit_end += unit.range.element_count;
  }
  EXPECT_EQ(unit_end, layout.element_count);
}

TEST(LayoutTest, BucketsAndShardsCoverAUnitOnce) {
  for (int64_t n : {1, 15, 16, 17, 1000, 4096}) {
    for (int64_t bucket_elements : {16, 48, 1000, 100000}) {
      for (int world : {1, 2, 3, 7, 64}) {
        int64_t next = 320;
        for (const FlatRange& bucket : CutBuckets({320, n}, bucket_elements)) {
          ASSERT_EQ(bucket.offset, next);
          ASSERT_GT(bucket.element_count, 0);
          ASSERT_LE(bucket.element_count, bucket_elements);
          for (int rank = 0; rank < world; ++rank) {
            const FlatRange shard = ShardOf(bucket, rank, world);
            if (shard.element_count == 0) continue;
            ASSERT_EQ(shard.offset, next);
            next += shard.element_count;
          }
          ASSERT_EQ(next, bucket.offset + bucket.element_count);
        }
        ASSERT_EQ(next, 320 + n);
      }
    }
  }
}

TEST(LayoutTest, PartsOfAnySizeCoverARangeOnce) {
  for (const int64_t size : {1, 3, 10, 11, 100}) {
    int64_t next = 7;
    for (int64_t i = 0; i < 12; ++i) {
      const FlatRange part = PartOf({7, 10}, size, i);
      EXPECT_EQ(part.offset, next);
      EXPECT_EQ(part.element_count, std::min(size, 17 - next));
      next += part.element_count;
    }
    EXPECT_EQ(next, 17);
  }
}

}  // namespace
}  // namespace lockstep
