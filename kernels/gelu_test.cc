#include "kernels/gelu.h"

#include <limits>

#include "kernels/gelu_reference.h"
#include "kernels/kernel_testing.h"

namespace lockstep::kernels {
namespace {

class GeluTest : public KernelTest {};
LS_INSTANTIATE_KERNEL_TEST(GeluTest);

// Both, of x + bias with the gradient `g` of the result.
struct Result {
  std::vector<float> out, gradient, bias_gradient;
};

Result RunBoth(Stream& stream, const std::vector<float>& x,
               const std::vector<float>& bias, const std::vector<float>& g,
               int64_t offset = 0) {
  const auto width = static_cast<int64_t>(bias.size());
  const int64_t rows = static_cast<int64_t>(x.size()) / width;
  Unaligned<float> in(x, offset), b(bias, offset), out(x, offset),
      gradient(g, offset);
  std::vector<float> bias_gradient(width, 9);
  std::vector<float> workspace(BiasGeluWorkspace(rows, width), 9);
  EXPECT_TRUE(
      BiasGeluForward(stream, in.data(), b.data(), rows, width, out.data())
          .ok());
  EXPECT_TRUE(BiasGeluBackward(stream, in.data(), b.data(), rows, width,
                               gradient.data(), bias_gradient.data(),
                               workspace.data())
                  .ok());
  return {out.values(), gradient.values(), bias_gradient};
}

TEST_P(GeluTest, FollowsTheFormula) {
  for (const int64_t rows : {0, 1, 7, 17, 257}) {
    for (const int64_t width : {1, 15, 64, 100}) {
      const std::vector<float> x = RandomFloats(1, rows * width, 3);
      const std::vector<float> bias = RandomFloats(2, width);
      const std::vector<float> g = RandomFloats(3, rows * width);
      std::vector<double> out, gradient, bias_gradient(width);
      for (int64_t i = 0; i < rows * width; ++i) {
        // The float32 sum, whose rounding is not the function's.
        const double z = x[i] + bias[i % width];
        out.push_back(GeluReference(z));
        gradient.push_back(g[i] * GeluDerivativeReference(z));
        bias_gradient[i % width] += gradient.back();
      }
      Result one;
      for (const int threads : {1, 2, 3}) {
        const Result r = RunBoth(StreamOf(threads), x, bias, g, threads);

        // The exponential is within 2 units, its argument of up to about 10
        // within 3: 4e-6 relative far out; the derivative's terms, of up to
        // about 2 times g's 4, nearly cancel at its zero.
        ASSERT_TRUE(AllNear(r.out, out, 1e-7, 1e-5));
        ASSERT_TRUE(AllNear(r.gradient, gradient, 3e-6, 1e-5));
        ASSERT_TRUE(AllNear(r.bias_gradient, bias_gradient, 1e-4, 1e-5));
        if (threads == 1) one = r;
        ASSERT_TRUE(BitEqual(r.out, one.out));
        ASSERT_TRUE(BitEqual(r.gradient, one.gradient));
        ASSERT_TRUE(BitEqual(r.bias_gradient, one.bias_gradient));
      }
    }
  }
}

TEST_P(GeluTest, WorksInPlace) {
  const std::vector<float> x = RandomFloats(1, 300, 3);
  const std::vector<float> bias = RandomFloats(2, 100);
  std::vector<float> apart(300), in_place = x;
  ASSERT_TRUE(
      BiasGeluForward(StreamOf(1), x.data(), bias.data(), 3, 100, apart.data())
          .ok());
  ASSERT_TRUE(BiasGeluForward(StreamOf(1), in_place.data(), bias.data(), 3, 100,
                              in_place.data())
                  .ok());
  EXPECT_TRUE(BitEqual(apart, in_place));
}

TEST_P(GeluTest, DoesNotDependOnWhereAnElementStands) {
  // As one row cut in two, at every place.
  const int64_t n = 83;
  const std::vector<float> x = RandomFloats(1, n, 3);
  const std::vector<float> bias = RandomFloats(2, n);
  const std::vector<float> g = RandomFloats(3, n);
  const Result whole = RunBoth(StreamOf(1), x, bias, g);
  for (int64_t cut = 1; cut < n; ++cut) {
    const auto slice = [&](const std::vector<float>& v, int64_t a, int64_t b) {
      return std::vector<float>(v.begin() + a, v.begin() + b);
    };
    for (const auto& [a, b] : {std::pair<int64_t, int64_t>{0, cut}, {cut, n}}) {
      const Result part = RunBoth(StreamOf(1), slice(x, a, b),
                                  slice(bias, a, b), slice(g, a, b));
      ASSERT_TRUE(BitEqual(part.out, slice(whole.out, a, b)));
      ASSERT_TRUE(BitEqual(part.gradient, slice(whole.gradient, a, b)));
    }
  }
}

TEST_P(GeluTest, FarOutItIsTheIdentityOrZero) {
  const std::vector<float> x = {10, 100, 1e4f, 1e8f, -20, -1e4f, 0, -0.0f};
  const std::vector<float> zero(8), one(8, 1);

  const Result r = RunBoth(StreamOf(1), x, zero, one);

  EXPECT_EQ(std::vector<float>(r.out.begin(), r.out.begin() + 4),
            (std::vector<float>{10, 100, 1e4f, 1e8f}));
  const std::vector<double> slopes = {1, 1, 1, 1, 0, 0, 0.5, 0.5};
  EXPECT_TRUE(AllNear(r.gradient, slopes, 1e-6, 0));
  for (int i = 4; i < 8; ++i) EXPECT_NEAR(r.out[i], 0, 1e-30);
}

TEST_P(GeluTest, ANanIsCarried) {
  std::vector<float> x(20, 1), g(20, 1);
  x[18] = std::numeric_limits<float>::quiet_NaN();
  g[3] = std::numeric_limits<float>::quiet_NaN();

  const Result r = RunBoth(StreamOf(1), x, std::vector<float>(20), g);

  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(std::isnan(r.out[i]), i == 18);
    EXPECT_EQ(std::isnan(r.gradient[i]), i == 18 || i == 3);
    EXPECT_EQ(std::isnan(r.bias_gradient[i]), i == 18 || i == 3);
  }
}

TEST(GeluReferenceTest, DerivativeIsTheSlope) {
  for (double z = -6; z <= 6; z += 0.37) {
    EXPECT_NEAR((GeluReference(z + 1e-5) - GeluReference(z - 1e-5)) / 2e-5,
                GeluDerivativeReference(z), 1e-9);
  }
}

TEST_P(GeluTest, WrongArgumentsAreRefused) {
  float f[4] = {};
  Stream& s = StreamOf(1);
  EXPECT_EQ(BiasGeluForward(s, f, nullptr, 1, 1, f).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(BiasGeluForward(s, f, f, -1, 1, f).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(BiasGeluBackward(s, f, f, 1, 1, f, f, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lockstep::kernels
