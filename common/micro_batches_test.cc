#include "common/micro_batches.h"

#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(MicroBatchesTest, EightOverThreeRanks) {
  EXPECT_EQ(MicroBatchesOf(8, 0, 3), (MicroBatchRange{0, 3}));
  EXPECT_EQ(MicroBatchesOf(8, 1, 3), (MicroBatchRange{3, 3}));
  EXPECT_EQ(MicroBatchesOf(8, 2, 3), (MicroBatchRange{6, 2}));
}

TEST(MicroBatchesTest, RanksWithoutWorkHaveEmptyRanges) {
  EXPECT_EQ(MicroBatchesOf(2, 1, 4), (MicroBatchRange{1, 1}));
  EXPECT_EQ(MicroBatchesOf(2, 2, 4).count, 0);
  EXPECT_EQ(MicroBatchesOf(2, 3, 4).count, 0);
  EXPECT_EQ(MicroBatchesOf(0, 0, 1).count, 0);
}

TEST(MicroBatchesTest, RangesCoverTheStepOnceAndDifferByAtMostOne) {
  for (int64_t count : {0, 1, 2, 7, 8, 64, 1'048'576}) {
    for (int world : {1, 2, 3, 5, 8, 64, 4096}) {
      int64_t next = 0;
      for (int rank = 0; rank < world; ++rank) {
        const MicroBatchRange range = MicroBatchesOf(count, rank, world);
        ASSERT_EQ(range.first, next);
        ASSERT_GE(range.count, count / world);
        ASSERT_LE(range.count, (count + world - 1) / world);
        if (rank > 0) {
          ASSERT_LE(range.count, MicroBatchesOf(count, rank - 1, world).count);
        }
        next += range.count;
      }
      ASSERT_EQ(next, count);
    }
  }
}

}  // namespace
}  // namespace lockstep
