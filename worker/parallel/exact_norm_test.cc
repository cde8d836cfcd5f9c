#include "worker/parallel/exact_norm.h"

#include <cmath>
#include <vector>

#include "common/philox.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

std::vector<int64_t> Limbs(std::vector<int64_t> low) {
  low.resize(kernels::kSquareLimbCount);
  return low;
}

TEST(ExactNormTest, ConvertsLimbsExactlyWhereTheyFit) {
  EXPECT_EQ(SquaresToDouble(Limbs({}), 0), 0);
  EXPECT_EQ(SquaresToDouble(Limbs({9}), 0), 9);
  EXPECT_EQ(SquaresToDouble(Limbs({0, 1}), 0), 0x1p32);
  EXPECT_EQ(SquaresToDouble(Limbs({5, 3}), 0), 5 + 3 * 0x1p32);
  EXPECT_EQ(SquaresToDouble(Limbs({0, 0, 0, 0, 0, 0x80000000}), 0), 0x1p191);
  EXPECT_EQ(SquaresToDouble(Limbs({9}), -100), 9 * 0x1p-200);
  EXPECT_EQ(SquaresToDouble(Limbs({9}), 100), 9 * 0x1p200);
}

TEST(ExactNormTest, CarriesBetweenLimbsThatRanksAddedUp) {
  const int64_t ranks = int64_t{1} << 30;
  EXPECT_EQ(SquaresToDouble(Limbs({ranks * 0xffffffff, ranks}), 0),
            ranks * 0xffffffffp0 + ranks * 0x1p32);
}

TEST(ExactNormTest, RoundsOnceToNearestWithTiesToEven) {
  // 2^60 + 2^7 is a tie between 2^60 and 2^60 + 2^8.
  const int64_t top = int64_t{1} << 28;
  EXPECT_EQ(SquaresToDouble(Limbs({1 << 7, top}), 0), 0x1p60);
  EXPECT_EQ(SquaresToDouble(Limbs({(1 << 7) + 1, top}), 0), 0x1p60 + 0x1p8);
  EXPECT_EQ(SquaresToDouble(Limbs({3 << 7, top}), 0), 0x1p60 + 0x1p9);
  // The bit that breaks the tie may be anywhere below.
  EXPECT_EQ(SquaresToDouble(Limbs({0, 0, 1 << 7, top}), 0), 0x1p124);
  EXPECT_EQ(SquaresToDouble(Limbs({1, 0, 1 << 7, top}), 0), 0x1p124 + 0x1p72);
}

// Against the same sum in long double, which is exact for two limbs.
TEST(ExactNormTest, AgreesWithLongDouble) {
  for (uint32_t i = 0; i < 20'000; ++i) {
    const PhiloxBlock b = Philox4x32({i, 0, 0, 0}, {3, 4});
    const int64_t low = b[0];
    const int64_t high = b[1] >> (b[2] % 32);
    const long double exact = static_cast<long double>(high) * 0x1p32L +
                              static_cast<long double>(low);
    ASSERT_EQ(SquaresToDouble(Limbs({low, high}), 0),
              static_cast<double>(exact))
        << i;
    ASSERT_EQ(SquaresToDouble(Limbs({0, 0, low, high}), 0),
              static_cast<double>(exact * 0x1p64L))
        << i;
  }
}

}  // namespace
}  // namespace lockstep
