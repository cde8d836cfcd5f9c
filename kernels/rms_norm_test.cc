#include "kernels/rms_norm.h"

#include <limits>
#include <utility>

#include "kernels/kernel_testing.h"
#include "kernels/rms_norm_reference.h"

namespace lockstep::kernels {
namespace {

constexpr double kEpsilon = 1e-5;

class RmsNormTest : public KernelTest {};
LS_INSTANTIATE_KERNEL_TEST(RmsNormTest);

struct Outputs {
  std::vector<float> out, rstd;
};

Outputs Forward(Stream& stream, const std::vector<float>& x,
                const std::vector<float>& weight, int64_t offset = 0) {
  const auto width = static_cast<int64_t>(weight.size());
  const int64_t rows = static_cast<int64_t>(x.size()) / width;
  Unaligned<float> in(x, offset), w(weight, offset),
      out(std::vector<float>(x.size(), 9), offset);
  std::vector<float> rstd(rows, 9);
  EXPECT_TRUE(RmsNormForward(stream, in.data(), w.data(), rows, width, kEpsilon,
                             out.data(), rstd.data())
                  .ok());
  return {out.values(), rstd};
}

struct Gradients {
  std::vector<float> x, weight, x_column_sums;
};

// Adds to `residual`, if there is one.
Gradients Backward(Stream& stream, const std::vector<float>& x,
                   const std::vector<float>& weight,
                   const std::vector<float>& out_gradient,
                   const std::vector<float>* residual, int64_t offset) {
  const auto width = static_cast<int64_t>(weight.size());
  const int64_t rows = static_cast<int64_t>(x.size()) / width;
  const std::vector<float> rstd = Forward(stream, x, weight).rstd;
  Unaligned<float> in(x, offset), w(weight, offset), g(out_gradient, offset);
  // NaN: what was there must not count.
  Unaligned<float> x_gradient(
      residual != nullptr
          ? *residual
          : std::vector<float>(x.size(),
                               std::numeric_limits<float>::quiet_NaN()),
      offset);
  std::vector<float> workspace(RmsNormWorkspace(rows, width),
                               std::numeric_limits<float>::quiet_NaN());
  Gradients r{{}, std::vector<float>(width, 9), std::vector<float>(width, 9)};
  EXPECT_TRUE(RmsNormBackward(stream, in.data(), w.data(), rstd.data(),
                              g.data(), rows, width,
                              {.x = x_gradient.data(),
                               .overwrite = residual == nullptr,
                               .weight = r.weight.data(),
                               .x_column_sums = r.x_column_sums.data()},
                              workspace.data())
                  .ok());
  r.x = x_gradient.values();
  return r;
}

TEST_P(RmsNormTest, ForwardFollowsTheFormula) {
  for (const int64_t rows : {0, 1, 7, 17, 257}) {
    for (const int64_t width : {1, 5, 16, 48, 250}) {
      const std::vector<float> x = RandomFloats(1, rows * width, 2);
      const std::vector<float> weight = RandomFloats(2, width);
      const RmsNormReference expected =
          RmsNormForwardReference(ToDouble(x), ToDouble(weight), kEpsilon);
      Outputs one;
      for (const int threads : {1, 2, 3}) {
        const Outputs r = Forward(StreamOf(threads), x, weight, threads);
        // Sums of up to 250 positive terms, in lanes.
        ASSERT_TRUE(AllNear(r.out, expected.out, 1e-6, 2e-6));
        ASSERT_TRUE(AllNear(r.rstd, expected.rstd, 0, 2e-6));
        if (threads == 1) one = r;
        ASSERT_TRUE(BitEqual(r.out, one.out));
        ASSERT_TRUE(BitEqual(r.rstd, one.rstd));
      }
    }
  }
}

TEST_P(RmsNormTest, BackwardFollowsTheFormula) {
  for (const int64_t rows : {0, 1, 7, 17, 257}) {
    for (const int64_t width : {5, 16, 48, 250}) {
      const std::vector<float> x = RandomFloats(1, rows * width, 2);
      const std::vector<float> weight = RandomFloats(2, width);
      const std::vector<float> g = RandomFloats(3, rows * width);
      const std::vector<float> residual = RandomFloats(4, rows * width);
      const RmsNormGradientReference expected = RmsNormBackwardReference(
          ToDouble(x), ToDouble(weight), kEpsilon, ToDouble(g));
      for (const bool add : {false, true}) {
        std::vector<double> expected_x = expected.x;
        std::vector<double> sums(width);
        for (int64_t i = 0; i < rows * width; ++i) {
          if (add) expected_x[i] += residual[i];
          sums[i % width] += expected_x[i];
        }
        Gradients one;
        for (const int threads : {1, 2, 3}) {
          const Gradients r = Backward(StreamOf(threads), x, weight, g,
                                       add ? &residual : nullptr, threads);

          // Rows of 5 to 250 terms of about 1, times rstd, which is up to about
          // 3 in a row of 5; sums over 257 rows of terms of up to 10.
          ASSERT_TRUE(AllNear(r.x, expected_x, 2e-5, 1e-5));
          ASSERT_TRUE(AllNear(r.weight, expected.weight, 1e-4, 1e-6));
          ASSERT_TRUE(AllNear(r.x_column_sums, sums, 3e-4, 1e-6));
          if (threads == 1) one = r;
          ASSERT_TRUE(BitEqual(r.x, one.x));
          ASSERT_TRUE(BitEqual(r.weight, one.weight));
          ASSERT_TRUE(BitEqual(r.x_column_sums, one.x_column_sums));
        }
      }
    }
  }
}

TEST(RmsNormReferenceTest, BackwardIsTheSlopeOfForward) {
  const int64_t rows = 3, width = 7;
  std::vector<double> x = ToDouble(RandomFloats(1, rows * width));
  std::vector<double> weight = ToDouble(RandomFloats(2, width));
  const std::vector<double> g = ToDouble(RandomFloats(4, rows * width));
  const auto loss = [&] {
    const auto out = RmsNormForwardReference(x, weight, kEpsilon).out;
    double sum = 0;
    for (size_t i = 0; i < out.size(); ++i) sum += out[i] * g[i];
    return sum;
  };
  const auto gradients = RmsNormBackwardReference(x, weight, kEpsilon, g);
  for (const auto& [values, gradient] :
       {std::pair{&x, &gradients.x}, std::pair{&weight, &gradients.weight}}) {
    for (size_t i = 0; i < values->size(); ++i) {
      const double at = (*values)[i];
      (*values)[i] = at + 1e-5;
      const double above = loss();
      (*values)[i] = at - 1e-5;
      const double below = loss();
      (*values)[i] = at;
      ASSERT_NEAR((above - below) / 2e-5, (*gradient)[i], 1e-7);
    }
  }
}

TEST_P(RmsNormTest, ANanStaysInItsRowAndReachesTheSums) {
  const int64_t rows = 4, width = 20;
  std::vector<float> x = RandomFloats(1, rows * width);
  x[2 * width + 19] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> weight = RandomFloats(2, width);
  const std::vector<float> g = RandomFloats(3, rows * width);

  const Outputs r = Forward(StreamOf(1), x, weight);
  const Gradients b = Backward(StreamOf(1), x, weight, g, nullptr, 0);

  for (int64_t i = 0; i < rows * width; ++i) {
    ASSERT_EQ(std::isnan(r.out[i]), i / width == 2);
    ASSERT_EQ(std::isnan(b.x[i]), i / width == 2);
  }
  for (const float sum : b.weight) ASSERT_TRUE(std::isnan(sum));
}

TEST_P(RmsNormTest, WrongArgumentsAreRefused) {
  float f[4] = {};
  Stream& s = StreamOf(1);
  EXPECT_EQ(RmsNormForward(s, f, f, 1, 0, kEpsilon, f, f).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RmsNormForward(s, f, nullptr, 1, 1, kEpsilon, f, f).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RmsNormBackward(s, f, f, f, f, 1, 1, {.x = nullptr, .weight = f}, f)
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lockstep::kernels
