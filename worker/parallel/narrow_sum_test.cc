#include "worker/parallel/narrow_sum.h"

#include <cstdint>
#include <limits>
#include <vector>

#include "common/philox.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(NarrowSumTest, LargestMagnitudeIsOfEitherSign) {
  const std::vector<int64_t> values = {3, -9, 8, 0};
  EXPECT_EQ(LargestMagnitude(values.data(), 4), 9);
  EXPECT_EQ(LargestMagnitude(values.data(), 1), 3);
  EXPECT_EQ(LargestMagnitude(values.data(), 0), 0);
  const int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(LargestMagnitude(&most, 1), most);
}

// Of `ranks` ranks whose magnitudes add up to just below the limit.
void ExpectSumsComeBack(int ranks, int64_t n, uint64_t seed) {
  const int64_t most = (kNarrowSumLimit - 1) / ranks;
  std::vector<int64_t> sums(n), words(n);
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<int64_t> mine(n);
    for (int64_t i = 0; i < n; ++i) {
      const PhiloxBlock random = RandomBlock(static_cast<int64_t>(seed),
                                             RandomPurpose::kSampling, rank, i);
      // Extremes often, so that carries meet.
      mine[i] = random[0] % 3 == 0   ? most
                : random[0] % 3 == 1 ? -most
                                     : random[1] % (most + 1);
      sums[i] += mine[i];
    }
    PackNarrow(mine.data(), n);
    for (int64_t i = 0; i < NarrowWordCount(n); ++i) {
      words[i] = static_cast<int64_t>(static_cast<uint64_t>(words[i]) +
                                      static_cast<uint64_t>(mine[i]));
    }
  }
  UnpackNarrow(words.data(), n);
  EXPECT_EQ(words, sums) << ranks << " " << n;
}

TEST(NarrowSumTest, SumsOfPackedWordsAreThePackedSums) {
  for (const int ranks : {1, 2, 3, 8, 4096}) {
    for (const int64_t n : {0, 1, 2, 3, 16, 101}) {
      ExpectSumsComeBack(ranks, n, 5);
    }
  }
}

TEST(NarrowSumTest, TheOutermostSumsComeBack) {
  for (const int64_t a : {kNarrowSumLimit - 1, -kNarrowSumLimit, int64_t{0}}) {
    for (const int64_t b :
         {kNarrowSumLimit - 1, -kNarrowSumLimit, int64_t{-1}}) {
      std::vector<int64_t> values = {a, b, b};
      PackNarrow(values.data(), 3);
      UnpackNarrow(values.data(), 3);
      EXPECT_EQ(values, (std::vector<int64_t>{a, b, b}));
    }
  }
}

}  // namespace
}  // namespace lockstep
