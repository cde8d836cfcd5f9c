#include "worker/parallel/exact_unit.h"

#include <cmath>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr ExactScale kEight = {.micro_batch_count = 8,
                               .nominal_token_count = 4096};

UnitHistory After(std::initializer_list<int64_t> max_sums, int exponent) {
  UnitHistory history;
  for (const int64_t m : max_sums) AdvanceUnit(history, exponent, m);
  return history;
}

TEST(ExactUnitTest, StepZeroFollowsTheNominalTokens) {
  const auto initial = [](int64_t tokens) {
    return UnitExponent(
        {}, {.micro_batch_count = 8, .nominal_token_count = tokens});
  };

  EXPECT_EQ(initial(1), -44);
  EXPECT_EQ(initial(2), -43);
  EXPECT_EQ(initial(4096), -32);
  EXPECT_EQ(initial(4097), -31);  // Rounded up.
  EXPECT_EQ(initial(8191), -31);
  EXPECT_EQ(initial(8192), -31);
}

TEST(ExactUnitTest, EightMicroBatchesGive27BitsBelowTheLargestElement) {
  // The largest element is 1000 x 2^-20, below 2^10 x 2^-20.
  const UnitHistory history = After({1000}, -20);

  EXPECT_EQ(UnitExponent(history, kEight), -20 + 10 - 27);
}

TEST(ExactUnitTest, BitsFallByHalfTheLogarithmOfTheMicroBatches) {
  const UnitHistory history = After({1}, 0);  // p = 1.
  for (int64_t m : {1, 2, 3, 4, 5, 8, 15, 16, 17, 63, 64, 65, 1000, 1 << 20}) {
    const int bits = 1 - UnitExponent(history, {.micro_batch_count = m,
                                                .nominal_token_count = 1});
    EXPECT_EQ(bits, 29 - std::ceil(std::log2(m) / 2)) << m;
  }
}

// "Above" is strictly above: 2^k itself needs 2^(k+1).
TEST(ExactUnitTest, ThePowerIsTheOneAboveTheLargestElement) {
  const auto power = [](int64_t max_sum) {
    return UnitExponent(After({max_sum}, 0), kEight) + 27;
  };

  EXPECT_EQ(power(1), 1);
  EXPECT_EQ(power(2), 2);
  EXPECT_EQ(power(3), 2);
  EXPECT_EQ(power(1023), 10);
  EXPECT_EQ(power(1024), 11);
  EXPECT_EQ(power((int64_t{1} << 62) - 1), 62);
}

TEST(ExactUnitTest, ASpikeDoesNotCoarsenWhatFollows) {
  UnitHistory history = After({1000, 1000}, -20);
  const int calm = UnitExponent(history, kEight);

  AdvanceUnit(history, calm, int64_t{1} << 50);

  EXPECT_EQ(UnitExponent(history, kEight), calm);
}

TEST(ExactUnitTest, ALastingRiseIsFollowedAfterFourSteps) {
  UnitHistory history = After({1000}, -20);  // p = -10.
  for (int step = 0; step < 3; ++step) {
    AdvanceUnit(history, 0, 1000);  // p = 10.
    EXPECT_EQ(UnitExponent(history, kEight), -10 - 27);
  }
  AdvanceUnit(history, 0, 1000);
  EXPECT_EQ(UnitExponent(history, kEight), 10 - 27);
}

TEST(ExactUnitTest, AFallIsFollowedAtOnce) {
  UnitHistory history = After({1000, 1000, 1000, 1000}, 0);
  AdvanceUnit(history, -30, 1000);
  EXPECT_EQ(UnitExponent(history, kEight), -20 - 27);
}

TEST(ExactUnitTest, AZeroGradientAndASkippedStepStartAnew) {
  const int initial = UnitExponent({}, kEight);
  UnitHistory zero = After({1000, 1000}, 0);
  UnitHistory skipped = zero;

  AdvanceUnit(zero, 0, 0);
  ResetUnit(skipped);

  EXPECT_EQ(UnitExponent(zero, kEight), initial);
  EXPECT_EQ(UnitExponent(skipped, kEight), initial);
  // What was before the gap does not count any more.
  AdvanceUnit(zero, 40, 1000);
  EXPECT_EQ(UnitExponent(zero, kEight), 50 - 27);
}

TEST(ExactUnitTest, TheOverflowLimitRoundsMUpToAPowerOfTwo) {
  const auto limit = [](int64_t m) {
    return OverflowLimit({.micro_batch_count = m, .nominal_token_count = 1});
  };

  EXPECT_EQ(limit(1), int64_t{1} << 61);
  EXPECT_EQ(limit(2), int64_t{1} << 60);
  EXPECT_EQ(limit(3), int64_t{1} << 59);
  EXPECT_EQ(limit(8), int64_t{1} << 58);
  EXPECT_EQ(limit(9), int64_t{1} << 57);
}

// Two contributions a micro-batch, each below the limit, cannot pass 2^62, the
// largest sum whose square the norm takes.
TEST(ExactUnitTest, SumsBelowTheLimitCannotOverflow) {
  for (int64_t m : {1, 2, 3, 7, 8, 100, 1 << 30}) {
    const auto limit = static_cast<__int128>(
        OverflowLimit({.micro_batch_count = m, .nominal_token_count = 1}));
    EXPECT_LT(2 * m * (limit - 1), __int128{1} << 62) << m;
  }
}

// The smallest and the largest float as a gradient's largest element, step
// after step: exponents stay where the kernels take them (-1,000 to 1,000).
TEST(ExactUnitTest, ExponentsStayInTheKernelsRange) {
  const ExactScale many = {.micro_batch_count = 1,
                           .nominal_token_count = int64_t{1} << 50};
  for (const double largest : {0x1p-149, 0x1.fffffep127}) {
    UnitHistory history;
    int exponent = 0;
    for (int step = 0; step < 50; ++step) {
      exponent = UnitExponent(history, many);
      const double sum = std::ldexp(largest, -exponent);
      // Too large for the unit: such a step is skipped.
      if (sum >= 0x1p61) {
        exponent = std::ilogb(largest) - 60;
      }
      AdvanceUnit(history, exponent,
                  std::llrint(std::ldexp(largest, -exponent)));
    }
    EXPECT_GE(exponent, -1000);
    EXPECT_LE(exponent, 1000);
  }
}

TEST(ExactUnitTest, ScalesOutOfRangeAreRefusedWithTheirValue) {
  EXPECT_TRUE(ValidateExactScale(kEight).ok());
  for (int64_t bad : {int64_t{0}, int64_t{-5}, int64_t{1} << 51}) {
    for (const ExactScale& scale : {ExactScale{bad, 1}, ExactScale{1, bad}}) {
      const absl::Status status = ValidateExactScale(scale);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_NE(status.message().find(std::to_string(bad)), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace lockstep
