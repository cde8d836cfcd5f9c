#include "kernels/swiglu.h"

#include <limits>

#include "kernels/kernel_testing.h"
#include "kernels/swiglu_reference.h"

namespace lockstep::kernels {
namespace {

class SwiGluTest : public KernelTest {};
LS_INSTANTIATE_KERNEL_TEST(SwiGluTest);

struct Result {
  std::vector<float> out, gradient;
};

Result RunBoth(Stream& stream, const std::vector<float>& x, int64_t width,
               const std::vector<float>& g, int64_t offset = 0) {
  const int64_t rows = static_cast<int64_t>(g.size()) / width;
  Unaligned<float> in(x, offset), out(std::vector<float>(g.size(), 9), offset),
      gradient(x, offset), out_gradient(g, offset);
  EXPECT_TRUE(
      SwiGluForward(stream, in.data(), rows, width, out.data(), width).ok());
  EXPECT_TRUE(
      SwiGluBackward(stream, gradient.data(), out_gradient.data(), rows, width)
          .ok());
  return {out.values(), gradient.values()};
}

TEST_P(SwiGluTest, FollowsTheFormula) {
  for (const int64_t rows : {0, 1, 7, 17, 257}) {
    for (const int64_t width : {1, 15, 64, 100}) {
      const std::vector<float> x = RandomFloats(1, rows * 2 * width, 3);
      const std::vector<float> g = RandomFloats(2, rows * width);
      std::vector<double> out(rows * width), gradient(rows * 2 * width);
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t i = 0; i < width; ++i) {
          const int64_t at = row * 2 * width + i;
          const double gate = x[at], up = x[at + width];
          const SwiGluSlopes slopes = SwiGluDerivativeReference(gate, up);
          out[row * width + i] = SwiGluReference(gate, up);
          gradient[at] = g[row * width + i] * slopes.gate;
          gradient[at + width] = g[row * width + i] * slopes.up;
        }
      }
      Result one;
      for (const int threads : {1, 2, 3}) {
        const Result r = RunBoth(StreamOf(threads), x, width, g, threads);
        // The exponential is within 2 units; the slope's terms, of up to about
        // 1, nearly cancel at its zero, times g and up of up to 4 and 12.
        ASSERT_TRUE(AllNear(r.out, out, 1e-7, 2e-6));
        ASSERT_TRUE(AllNear(r.gradient, gradient, 1e-5, 2e-6));
        if (threads == 1) one = r;
        ASSERT_TRUE(BitEqual(r.out, one.out));
        ASSERT_TRUE(BitEqual(r.gradient, one.gradient));
      }
    }
  }
}

TEST_P(SwiGluTest, MayOverwriteItsGate) {
  const int64_t rows = 37, width = 21;
  const std::vector<float> x = RandomFloats(1, rows * 2 * width, 3);
  std::vector<float> apart(rows * width), in_place = x;
  ASSERT_TRUE(
      SwiGluForward(StreamOf(1), x.data(), rows, width, apart.data(), width)
          .ok());
  ASSERT_TRUE(SwiGluForward(StreamOf(3), in_place.data(), rows, width,
                            in_place.data(), 2 * width)
                  .ok());
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < width; ++i) {
      ASSERT_EQ(in_place[row * 2 * width + i], apart[row * width + i]);
      ASSERT_EQ(in_place[row * 2 * width + width + i],
                x[row * 2 * width + width + i]);
    }
  }
}

TEST_P(SwiGluTest, DoesNotDependOnWhereAnElementStands) {
  // As one row cut in two, at every place.
  const int64_t n = 83;
  const std::vector<float> x = RandomFloats(1, 2 * n, 3);
  const std::vector<float> g = RandomFloats(2, n);
  const Result whole = RunBoth(StreamOf(1), x, n, g);
  for (int64_t cut = 1; cut < n; ++cut) {
    for (const auto& [a, b] : {std::pair<int64_t, int64_t>{0, cut}, {cut, n}}) {
      const auto halves = [&, a = a, b = b](const std::vector<float>& v) {
        std::vector<float> part(v.begin() + a, v.begin() + b);
        part.insert(part.end(), v.begin() + n + a, v.begin() + n + b);
        return part;
      };
      const Result part =
          RunBoth(StreamOf(1), halves(x), b - a,
                  std::vector<float>(g.begin() + a, g.begin() + b));
      ASSERT_TRUE(BitEqual(
          part.out,
          std::vector<float>(whole.out.begin() + a, whole.out.begin() + b)));
      ASSERT_TRUE(BitEqual(part.gradient, halves(whole.gradient)));
    }
  }
}

TEST_P(SwiGluTest, FarOutItIsAProductOrZero) {
  const std::vector<float> x = {100, 1e4f, -100, -1e4f, 2, 2, 2, 2};
  const Result r = RunBoth(StreamOf(1), x, 4, std::vector<float>(4, 1));
  EXPECT_TRUE(AllNear(r.out, {200, 2e4, 0, 0}, 1e-30, 0));
  EXPECT_TRUE(AllNear(r.gradient, {2, 2, 0, 0, 100, 1e4, 0, 0}, 1e-30, 0));
}

TEST_P(SwiGluTest, ANanIsCarried) {
  std::vector<float> x(40, 1), g(20, 1);
  x[18] = std::numeric_limits<float>::quiet_NaN();
  g[3] = std::numeric_limits<float>::quiet_NaN();
  const Result r = RunBoth(StreamOf(1), x, 20, g);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(std::isnan(r.out[i]), i == 18);
    EXPECT_EQ(std::isnan(r.gradient[i]), i == 18 || i == 3);
    EXPECT_EQ(std::isnan(r.gradient[20 + i]), i == 18 || i == 3);
  }
}

TEST(SwiGluReferenceTest, DerivativeIsTheSlope) {
  for (double gate = -6; gate <= 6; gate += 0.37) {
    const double up = 1.7;
    const SwiGluSlopes slopes = SwiGluDerivativeReference(gate, up);
    EXPECT_NEAR(
        (SwiGluReference(gate + 1e-5, up) - SwiGluReference(gate - 1e-5, up)) /
            2e-5,
        slopes.gate, 1e-9);
    EXPECT_NEAR(
        (SwiGluReference(gate, up + 1e-5) - SwiGluReference(gate, up - 1e-5)) /
            2e-5,
        slopes.up, 1e-9);
  }
}

TEST_P(SwiGluTest, WrongArgumentsAreRefused) {
  float f[4] = {};
  Stream& s = StreamOf(1);
  EXPECT_EQ(SwiGluForward(s, f, 1, 2, f, 1).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SwiGluForward(s, nullptr, 1, 1, f, 1).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SwiGluBackward(s, f, nullptr, 1, 1).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SwiGluBackward(s, f, f, -1, 1).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lockstep::kernels
