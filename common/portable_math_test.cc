#include "common/portable_math.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "common/philox.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

// |got - want| in units of the last place of want, or of 2^-52 at 1 where
// `absolute`; `want` has the 64 bits of long double.
double ErrorUlps(double got, long double want, bool absolute) {
  const long double size = absolute ? 1.0L : std::fabs(want);
  const long double ulp = std::ldexp(1.0L, std::ilogb(size) - 52);
  return static_cast<double>(std::fabs(got - want) / ulp);
}

TEST(PortableMathTest, LogIsWithinTwoUnits) {
  double worst = 0;
  for (uint64_t i = 0; i < 200'000; ++i) {
    const PhiloxBlock w = RandomBlock(1, RandomPurpose::kSampling, 0, i);
    // A third each: all magnitudes, near 1, and what uniform numbers give.
    double x = std::ldexp(1 + UniformFrom(w[0]), w[1] % 2000 - 1000);
    if (i % 3 == 1) x = 1 + (UniformFrom(w[0]) - 0.5) * 0.01;
    if (i % 3 == 2) x = UniformFrom(w[0]);
    worst = std::max(
        worst, ErrorUlps(PortableLog(x), std::log(static_cast<long double>(x)),
                         false));
  }
  EXPECT_LT(worst, 2);
  EXPECT_EQ(PortableLog(1), 0);
  EXPECT_EQ(PortableLog(std::numeric_limits<double>::max()),
            std::log(std::numeric_limits<double>::max()));
}

TEST(PortableMathTest, ExpIsWithinTwoUnits) {
  double worst = 0;
  for (uint64_t i = 0; i < 200'000; ++i) {
    const PhiloxBlock w = RandomBlock(3, RandomPurpose::kSampling, 0, i);
    const double x = (UniformFrom(w[0]) - 0.5) * (i % 2 == 0 ? 1400 : 2);
    worst = std::max(
        worst, ErrorUlps(PortableExp(x), std::exp(static_cast<long double>(x)),
                         false));
  }
  EXPECT_LT(worst, 2);
  EXPECT_EQ(PortableExp(0), 1);
}

TEST(PortableMathTest, SineAndCosineAreWithinTwoUnitsOfOne) {
  const long double pi = 3.14159265358979323846264338327950288L;
  double worst = 0;
  for (uint64_t i = 0; i < 200'000; ++i) {
    const PhiloxBlock w = RandomBlock(2, RandomPurpose::kSampling, 0, i);
    const double x = (UniformFrom(w[0]) - 0.5) * (i % 2 == 0 ? 2 : 16);
    const long double y = pi * static_cast<long double>(x);
    worst = std::max(worst, ErrorUlps(PortableCosPi(x), std::cos(y), true));
    worst = std::max(worst, ErrorUlps(PortableSinPi(x), std::sin(y), true));
  }
  EXPECT_LT(worst, 2);
}

TEST(PortableMathTest, SineAndCosineAreExactAtHalves) {
  const double cosines[] = {1, 0, -1, 0};
  for (int n = -9; n <= 9; ++n) {
    EXPECT_EQ(PortableCosPi(n / 2.0), cosines[(n + 100) % 4]) << n;
    EXPECT_EQ(PortableSinPi(n / 2.0), cosines[(n + 99) % 4]) << n;
  }
}

// Pinned: what is trained depends on these bits.
TEST(PortableMathTest, BitsAreTheSameEverywhere) {
  EXPECT_EQ(std::bit_cast<uint64_t>(PortableLog(0.3)), 0xbff34378fcbda721);
  EXPECT_EQ(std::bit_cast<uint64_t>(PortableLog(12345.678)),
            0x4022d79559791e31);
  EXPECT_EQ(std::bit_cast<uint64_t>(PortableExp(-3.7)), 0x3f99511fc6871044);
  EXPECT_EQ(std::bit_cast<uint64_t>(PortableCosPi(0.1)), 0x3fee6f0e13445500);
  EXPECT_EQ(std::bit_cast<uint64_t>(PortableCosPi(0.7)), 0xbfe2cf2304755a5d);
  EXPECT_EQ(std::bit_cast<uint64_t>(PortableSinPi(0.1)), 0x3fd3c6ef372fe94f);
}

}  // namespace
}  // namespace lockstep
