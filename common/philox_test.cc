#include "common/philox.h"

#include <set>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

// The known answers published with the generator (Random123, kat_vectors).
TEST(PhiloxTest, GivesThePublishedAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t f = 0xffffffff;
  EXPECT_EQ(Philox4x32({f, f, f, f}, {f, f}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                       {0xa4093822, 0x299f31d0}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(PhiloxTest, EveryCoordinateMatters) {
  std::set<PhiloxBlock> seen;
  for (int64_t seed : {0LL, 1LL, 1LL << 40}) {
    for (auto purpose :
         {RandomPurpose::kInitialWeights, RandomPurpose::kSampleOrder}) {
      for (uint32_t a : {0u, 1u}) {
        for (uint64_t b : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 40}) {
          seen.insert(RandomBlock(seed, purpose, a, b));
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), 3u * 2 * 2 * 3);
}

TEST(PhiloxTest, UniformStaysInsideItsInterval) {
  EXPECT_GT(UniformFrom(0), 0.0);
  EXPECT_LT(UniformFrom(0xffffffff), 1.0);
  EXPECT_DOUBLE_EQ(UniformFrom(0x80000000), 0.5 + 0x1p-33);
}

}  // namespace
}  // namespace lockstep
