#include "kernels/rotary.h"

#include <cmath>
#include <limits>

#include "kernels/kernel_testing.h"
#include "kernels/rotary_reference.h"

namespace lockstep::kernels {
namespace {

class RotaryTest : public KernelTest {};
LS_INSTANTIATE_KERNEL_TEST(RotaryTest);

struct Tables {
  std::vector<float> cosine, sine;
};

Tables MakeTables(const RotaryShape& s) {
  Tables t;
  const std::vector<float> angles =
      RandomFloats(9, s.sequence_length * s.head_width / 2, 3);
  for (const float angle : angles) {
    t.cosine.push_back(std::cos(angle));
    t.sine.push_back(std::sin(angle));
  }
  return t;
}

std::vector<float> Turned(Stream& stream, const RotaryShape& s,
                          RotaryDirection direction,
                          const std::vector<float>& x, int64_t offset = 0) {
  const Tables tables = MakeTables(s);
  Unaligned<float> values(x, offset), cosine(tables.cosine, offset),
      sine(tables.sine, offset);
  EXPECT_TRUE(
      Rotate(stream, s, direction, cosine.data(), sine.data(), values.data())
          .ok());
  return values.values();
}

constexpr RotaryShape kShapes[] = {{0, 5, 2, 16, 32},  {1, 1, 1, 2, 2},
                                   {2, 37, 3, 16, 80}, {3, 64, 5, 80, 400},
                                   {1, 100, 2, 6, 17}, {1, 37, 6, 128, 1024}};

std::vector<float> Values(const RotaryShape& s) {
  return RandomFloats(1, s.row_count * s.sequence_length * s.stride);
}

TEST_P(RotaryTest, FollowsTheFormula) {
  for (const RotaryShape& s : kShapes) {
    const std::vector<float> x = Values(s);
    const Tables tables = MakeTables(s);
    for (const RotaryDirection direction :
         {RotaryDirection::kForward, RotaryDirection::kBackward}) {
      const std::vector<double> expected =
          RotateReference(s, direction, ToDouble(tables.cosine),
                          ToDouble(tables.sine), ToDouble(x));
      std::vector<float> one;
      for (const int threads : {1, 2, 3}) {
        const std::vector<float> r =
            Turned(StreamOf(threads), s, direction, x, threads);
        // Two products of values of up to 4, one rounded.
        ASSERT_TRUE(AllNear(r, expected, 5e-7, 0)) << s.stride;
        if (threads == 1) one = r;
        ASSERT_TRUE(BitEqual(r, one));
      }
    }
  }
}

TEST_P(RotaryTest, BackwardUndoesForward) {
  for (const RotaryShape& s : kShapes) {
    const std::vector<float> x = Values(s);
    const std::vector<float> there =
        Turned(StreamOf(1), s, RotaryDirection::kForward, x);
    const std::vector<float> back =
        Turned(StreamOf(1), s, RotaryDirection::kBackward, there);
    EXPECT_TRUE(AllNear(back, ToDouble(x), 2e-6, 0));
  }
}

// Lengths stay, so that a score depends on the distance of two positions.
TEST_P(RotaryTest, OnlyTheTurnedHeadsChange) {
  const RotaryShape s{2, 5, 2, 6, 20};
  const std::vector<float> x = Values(s);
  const std::vector<float> r =
      Turned(StreamOf(1), s, RotaryDirection::kForward, x);
  for (size_t i = 0; i < x.size(); ++i) {
    if (i % 20 >= 12) {
      ASSERT_EQ(r[i], x[i]) << i;
    }
  }
}

TEST_P(RotaryTest, ANanReachesItsPairAlone) {
  const RotaryShape s{1, 4, 1, 20, 20};
  std::vector<float> x = Values(s);
  x[2 * 20 + 9] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> r =
      Turned(StreamOf(1), s, RotaryDirection::kForward, x);
  for (int64_t i = 0; i < std::ssize(r); ++i) {
    EXPECT_EQ(std::isnan(r[i]), i == 49 || i == 59) << i;
  }
}

TEST_P(RotaryTest, WrongArgumentsAreRefused) {
  float f[4] = {};
  Stream& s = StreamOf(1);
  const auto forward = RotaryDirection::kForward;
  EXPECT_EQ(Rotate(s, {1, 1, 1, 3, 3}, forward, f, f, f).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Rotate(s, {1, 1, 2, 2, 3}, forward, f, f, f).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Rotate(s, {1, 1, 1, 2, 2}, forward, f, nullptr, f).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lockstep::kernels
