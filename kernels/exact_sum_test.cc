#include "kernels/exact_sum.h"

#include <array>
#include <cmath>
#include <limits>

#include "kernels/exact_sum_reference.h"
#include "kernels/kernel_testing.h"

namespace lockstep::kernels {
namespace {

constexpr int64_t kSizes[] = {0, 1, 7, 8, 15, 17, 257, 5000, 70'001};
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class ExactSumTest : public KernelTest {};
LS_INSTANTIATE_KERNEL_TEST(ExactSumTest);

// Integers of up to `bits` bits, of both signs.
std::vector<int64_t> RandomIntegers(uint64_t seed, int64_t n, int bits) {
  std::vector<int64_t> values(n);
  const std::vector<float> random = RandomFloats(seed, 2 * n);
  for (int64_t i = 0; i < n; ++i) {
    const double size = std::ldexp(1.0, bits - 1) - 1;
    values[i] = static_cast<int64_t>(
        std::fmax(-size, std::fmin(size, random[2 * i] * size / 3)));
    // Low bits too, which a float does not have.
    values[i] ^= static_cast<int64_t>(std::fabs(random[2 * i + 1]) * 1000) & 7;
  }
  return values;
}

TEST_P(ExactSumTest, AccumulatesWhatTheReferenceDoes) {
  struct Case {
    int exponent;
    float scale;
    int64_t limit;
  };
  // Around the ranges of the two ways to round: q below and above 2^51.
  const Case cases[] = {{-30, 1, int64_t{1} << 61},
                        {-52, 1, int64_t{1} << 61},
                        {-60, 1, int64_t{1} << 62},
                        {-60, 1, int64_t{1} << 59},
                        {-20, 100, int64_t{1} << 24},
                        {0, 3, 4},
                        {140, 1e30f, int64_t{1} << 50},
                        {-149, 1e-40f, int64_t{1} << 40},
                        {1000, 1e38f, 1},
                        {-1000, 1, 1 << 20}};
  for (const Case& c : cases) {
    for (const int64_t n : kSizes) {
      const std::vector<float> gradient = RandomFloats(n, n, c.scale);
      const std::vector<int64_t> start = RandomIntegers(n + 1, n, 50);
      std::vector<int64_t> expected = start;
      int32_t expected_overflow = 0;
      AccumulateExactReference(gradient.data(), expected.data(), n, c.exponent,
                               c.limit, &expected_overflow);
      for (const int threads : {1, 2, 3}) {
        Unaligned<float> g(gradient, threads);
        Unaligned<int64_t> sum(start, threads);
        int32_t overflow = 0;

        ASSERT_TRUE(AccumulateExact(StreamOf(threads), g.data(), sum.data(), n,
                                    c.exponent, c.limit, &overflow)
                        .ok());

        ASSERT_TRUE(BitEqual(sum.values(), expected))
            << "exponent " << c.exponent << " n " << n;
        ASSERT_EQ(overflow, expected_overflow);
      }
    }
  }
}

TEST_P(ExactSumTest, TiesGoToEven) {
  const std::vector<float> gradient = {0.5f,  1.5f,  2.5f,   -0.5f, -1.5f,
                                       -2.5f, 0.49f, -3.51f, 0.0f,  -0.0f};
  const std::vector<int64_t> expected = {0, 2, 2, 0, -2, -2, 0, -4, 0, 0};
  for (int exponent : {0, -3}) {
    std::vector<float> scaled = gradient;
    for (float& g : scaled) g = std::ldexp(g, exponent);
    std::vector<int64_t> sum(gradient.size());
    int32_t overflow = 0;

    ASSERT_TRUE(AccumulateExact(StreamOf(1), scaled.data(), sum.data(),
                                sum.size(), exponent, 100, &overflow)
                    .ok());

    EXPECT_TRUE(BitEqual(sum, expected));
    EXPECT_EQ(overflow, 0);
  }
}

TEST_P(ExactSumTest, WhatOverflowsIsLeftOutAndTold) {
  struct Case {
    float bad;
    int exponent;
    int64_t limit;
  };
  const Case cases[] = {
      {kNan, 0, 100},
      {kInf, 0, 100},
      {-kInf, 0, 100},
      {100, 0, 100},
      {-100, 0, 100},
      {99.5f, 0, 100},
      {3e38f, -300, 1 << 20},
      {1, -62, int64_t{1} << 62},
      {-1, -61, int64_t{1} << 61},
  };
  for (const Case& c : cases) {
    // At every place of a vector and of its tail.
    for (int64_t n = 1; n <= 19; ++n) {
      for (int64_t at = 0; at < n; ++at) {
        std::vector<float> gradient(n, std::ldexp(1.0f, c.exponent));
        if (c.exponent < -149) gradient.assign(n, 0);
        gradient[at] = c.bad;
        std::vector<int64_t> sum(n, 7);
        int32_t overflow = 0;
        std::vector<int64_t> expected(n, 7);
        int32_t expected_overflow = 0;
        AccumulateExactReference(gradient.data(), expected.data(), n,
                                 c.exponent, c.limit, &expected_overflow);

        ASSERT_TRUE(AccumulateExact(StreamOf(1), gradient.data(), sum.data(), n,
                                    c.exponent, c.limit, &overflow)
                        .ok());

        ASSERT_EQ(overflow, 1) << c.bad << " at " << at << " of " << n;
        ASSERT_EQ(expected_overflow, 1);
        ASSERT_EQ(sum[at], 7);
        ASSERT_TRUE(BitEqual(sum, expected));
      }
    }
  }
}

TEST_P(ExactSumTest, AnOverflowSeenBeforeStays) {
  const std::vector<float> gradient(3, 1);
  std::vector<int64_t> sum(3);
  int32_t overflow = 1;

  ASSERT_TRUE(AccumulateExact(StreamOf(1), gradient.data(), sum.data(), 3, 0,
                              100, &overflow)
                  .ok());

  EXPECT_EQ(overflow, 1);
  EXPECT_EQ(sum, (std::vector<int64_t>{1, 1, 1}));
}

TEST_P(ExactSumTest, MaxIsTheLargestMagnitude) {
  for (const int bits : {4, 31, 62}) {
    for (const int64_t n : kSizes) {
      const std::vector<int64_t> values = RandomIntegers(bits, n, bits);
      for (const int threads : {1, 2, 3}) {
        Unaligned<int64_t> sum(values, threads);
        for (const int64_t before : {int64_t{0}, int64_t{5}}) {
          int64_t expected = before;
          MaxExactReference(values.data(), n, &expected);
          int64_t max = before;

          ASSERT_TRUE(MaxExact(StreamOf(threads), sum.data(), n, &max).ok());

          ASSERT_EQ(max, expected);
        }
      }
    }
  }
}

TEST_P(ExactSumTest, MaxFindsItAtEveryPlace) {
  for (int64_t n = 1; n <= 19; ++n) {
    for (int64_t at = 0; at < n; ++at) {
      std::vector<int64_t> sum(n, 1);
      sum[at] = at % 2 == 0 ? -9 : 9;
      int64_t max = 0;
      ASSERT_TRUE(MaxExact(StreamOf(1), sum.data(), n, &max).ok());
      ASSERT_EQ(max, 9);
    }
  }
}

TEST_P(ExactSumTest, SquaresAreExact) {
  // Below 2^31 the short way runs, above it the long one; 31 and 32 bits (with
  // sign) are on the two sides of it.
  for (const int bits : {8, 31, 32, 33, 45, 62}) {
    for (const int64_t n : kSizes) {
      const std::vector<int64_t> values = RandomIntegers(bits, n, bits);
      for (const int threads : {1, 2, 3}) {
        Unaligned<int64_t> sum(values, threads);
        std::array<int64_t, kSquareLimbCount> limbs = {
            0xffffffff, 0xffffffff, 0xffffffff, 5, 0, 0};
        auto expected = limbs;
        AddSquaresExactReference(values.data(), n, expected.data());

        ASSERT_TRUE(
            AddSquaresExact(StreamOf(threads), sum.data(), n, limbs.data())
                .ok());

        ASSERT_EQ(limbs, expected) << bits << " bits, n " << n;
      }
    }
  }
}

TEST_P(ExactSumTest, SquaresOfTheLargestElements) {
  constexpr int64_t kN = 100'003;
  const int64_t edges[] = {(int64_t{1} << 62) - 1, -(int64_t{1} << 62) + 1,
                           (int64_t{1} << 31) - 1, int64_t{1} << 31,
                           -(int64_t{1} << 31),    int64_t{0xffffffff}};
  for (const int64_t edge : edges) {
    const std::vector<int64_t> values(kN, edge);
    std::array<int64_t, kSquareLimbCount> limbs = {};
    auto expected = limbs;
    AddSquaresExactReference(values.data(), kN, expected.data());

    ASSERT_TRUE(
        AddSquaresExact(StreamOf(2), values.data(), kN, limbs.data()).ok());

    ASSERT_EQ(limbs, expected) << edge;
  }
}

TEST_P(ExactSumTest, OneLargeElementIsSquaredAtEveryPlace) {
  for (int64_t n = 1; n <= 19; ++n) {
    for (int64_t at = 0; at < n; ++at) {
      std::vector<int64_t> values(n, 3);
      values[at] = -(int64_t{1} << 40);
      std::array<int64_t, kSquareLimbCount> limbs = {};

      ASSERT_TRUE(
          AddSquaresExact(StreamOf(1), values.data(), n, limbs.data()).ok());

      const std::array<int64_t, kSquareLimbCount> expected = {9 * (n - 1), 0,
                                                              1 << 16};
      ASSERT_EQ(limbs, expected);
    }
  }
}

AdamWOptions SomeOptions() {
  return {.exponent = -30,
          .token_count = 1000,
          .clip_scale = 0.7,
          .learning_rate = 3e-3,
          .beta1 = 0.9,
          .beta2 = 0.95,
          .epsilon = 1e-8,
          .weight_decay = 0.1,
          .bias_correction1 = 1 - std::pow(0.9, 3),
          .bias_correction2 = 1 - std::pow(0.95, 3)};
}

struct AdamWArrays {
  explicit AdamWArrays(int64_t n)
      : parameter(RandomFloats(1, n, 0.02f)),
        moment1(RandomFloats(2, n, 1e-3f)),
        moment2(RandomFloats(3, n, 1e-5f)),
        sum(RandomIntegers(4, n, 42)) {
    for (float& v : moment2) v = std::fabs(v) + 1e-8f;
  }
  std::vector<float> parameter, moment1, moment2;
  std::vector<int64_t> sum;
};

TEST_P(ExactSumTest, AdamWFollowsTheFormula) {
  const AdamWOptions options = SomeOptions();
  for (const int64_t n : kSizes) {
    const AdamWArrays start(n);
    std::vector<double> p = ToDouble(start.parameter);
    std::vector<double> m = ToDouble(start.moment1);
    std::vector<double> v = ToDouble(start.moment2);
    AdamWExactReference(p.data(), m.data(), v.data(), start.sum.data(), n,
                        options);
    for (const int threads : {1, 2, 3}) {
      AdamWArrays a = start;
      ASSERT_TRUE(AdamWExact(StreamOf(threads), a.parameter.data(),
                             a.moment1.data(), a.moment2.data(), a.sum.data(),
                             n, options)
                      .ok());

      // A handful of float32 roundings (2^-24 each) of terms that are at most
      // as large as: m 1e-2, v's terms, all positive; and of the parameter,
      // whose step is at most lr x (m / sqrt(v) of a few + decay).
      EXPECT_TRUE(AllNear(a.moment1, m, 1e-8, 4e-7));
      EXPECT_TRUE(AllNear(a.moment2, v, 1e-14, 6e-7));
      EXPECT_TRUE(AllNear(a.parameter, p, 3e-7, 2e-7));
    }
  }
}

TEST_P(ExactSumTest, AdamWDoesNotDependOnWhereAnElementStands) {
  constexpr int64_t kN = 203;
  const AdamWArrays start(kN);
  AdamWArrays whole = start;
  ASSERT_TRUE(AdamWExact(StreamOf(1), whole.parameter.data(),
                         whole.moment1.data(), whole.moment2.data(),
                         whole.sum.data(), kN, SomeOptions())
                  .ok());
  for (int64_t cut = 0; cut <= kN; ++cut) {
    AdamWArrays parts = start;
    for (const auto& [begin, end] :
         {std::pair<int64_t, int64_t>{0, cut}, {cut, kN}}) {
      ASSERT_TRUE(
          AdamWExact(StreamOf(1), parts.parameter.data() + begin,
                     parts.moment1.data() + begin, parts.moment2.data() + begin,
                     parts.sum.data() + begin, end - begin, SomeOptions())
              .ok());
    }
    ASSERT_TRUE(BitEqual(parts.parameter, whole.parameter)) << cut;
    ASSERT_TRUE(BitEqual(parts.moment1, whole.moment1)) << cut;
    ASSERT_TRUE(BitEqual(parts.moment2, whole.moment2)) << cut;
  }
}

TEST_P(ExactSumTest, AdamWWithoutGradientOnlyDecays) {
  std::vector<float> p = {2, -2, 0}, m(3), v(3);
  const std::vector<int64_t> sum(3);
  AdamWOptions options = SomeOptions();
  options.learning_rate = 0.5;
  options.weight_decay = 0.5;

  ASSERT_TRUE(AdamWExact(StreamOf(1), p.data(), m.data(), v.data(), sum.data(),
                         3, options)
                  .ok());

  EXPECT_EQ(p, (std::vector<float>{1.5f, -1.5f, 0}));
}

TEST_P(ExactSumTest, WrongArgumentsAreRefusedByName) {
  Stream& s = StreamOf(1);
  float f = 0;
  int64_t sum = 0;
  int32_t overflow = 0;
  const absl::Status errors[] = {
      AccumulateExact(s, &f, &sum, -1, 0, 1, &overflow),
      AccumulateExact(s, nullptr, &sum, 1, 0, 1, &overflow),
      AccumulateExact(s, &f, &sum, 1, 1001, 1, &overflow),
      AccumulateExact(s, &f, &sum, 1, 0, 0, &overflow),
      MaxExact(s, &sum, 1, nullptr),
      AddSquaresExact(s, nullptr, 1, &sum),
      AdamWExact(s, &f, &f, nullptr, &sum, 1, {}),
      AdamWExact(s, &f, &f, &f, &sum, 1, {.token_count = 0}),
  };
  const char* const names[] = {
      "n=-1",        "gradient is null", "exponent=1001",   "limit=0",
      "max is null", "sum is null",      "moment2 is null", "token_count=0"};
  for (size_t i = 0; i < std::size(errors); ++i) {
    EXPECT_EQ(errors[i].code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(errors[i].message().find(names[i]), absl::string_view::npos)
        << errors[i];
  }
}

}  // namespace
}  // namespace lockstep::kernels
