#include "worker/checkpoint/dtype.h"

#include <bit>
#include <cmath>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(DtypeTest, NamesAreUniqueAndLeadBack) {
  for (int i = 0; i <= static_cast<int>(Dtype::kU64); ++i) {
    const auto dtype = static_cast<Dtype>(i);
    EXPECT_EQ(DtypeFromName(DtypeName(dtype)), dtype) << DtypeName(dtype);
  }
  EXPECT_EQ(DtypeFromName("F31"), std::nullopt);
  EXPECT_EQ(DtypeName(Dtype::kBf16), "BF16");
  EXPECT_EQ(DtypeBits(Dtype::kBf16), 16);
  EXPECT_EQ(DtypeName(Dtype::kF8E4M3), "F8_E4M3");
  EXPECT_EQ(DtypeBits(Dtype::kF6E3M2), 6);
  EXPECT_EQ(DtypeName(Dtype::kF32), "F32");
  EXPECT_EQ(DtypeBits(Dtype::kF32), 32);
}

// Every half, against its value written as mantissa times a power of two.
TEST(DtypeTest, HalvesAreExact) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const int exponent = (bits >> 10) & 0x1f;
    const int mantissa = bits & 0x3ff;
    const float got = FloatFromHalf(static_cast<uint16_t>(bits));
    EXPECT_EQ(std::signbit(got), bits >= 0x8000) << bits;
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(got), mantissa != 0);
      EXPECT_EQ(std::isinf(got), mantissa == 0);
    } else {
      const double want = exponent == 0
                              ? std::ldexp(mantissa, -24)
                              : std::ldexp(1024 + mantissa, exponent - 25);
      EXPECT_EQ(std::fabs(got), want) << bits;
    }
  }
}

TEST(DtypeTest, Bfloat16IsTheUpperHalfOfAFloat) {
  EXPECT_EQ(FloatFromBfloat16(0x3f80), 1.0f);
  EXPECT_EQ(FloatFromBfloat16(0xc049), -3.140625f);
  EXPECT_EQ(FloatFromBfloat16(0x0001), 0x1p-133f);
  EXPECT_TRUE(std::isinf(FloatFromBfloat16(0x7f80)));
}

}  // namespace
}  // namespace lockstep
