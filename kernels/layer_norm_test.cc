#include "kernels/layer_norm.h"

#include <limits>

#include "kernels/kernel_testing.h"
#include "kernels/layer_norm_reference.h"

namespace lockstep::kernels {
namespace {

constexpr double kEpsilon = 1e-5;

class LayerNormTest : public KernelTest {};
LS_INSTANTIATE_KERNEL_TEST(LayerNormTest);

struct Outputs {
  std::vector<float> out, mean, rstd;
};

Outputs Forward(Stream& stream, const std::vector<float>& x,
                const std::vector<float>& weight,
                const std::vector<float>& bias, int64_t offset = 0) {
  const auto width = static_cast<int64_t>(weight.size());
  const int64_t rows = static_cast<int64_t>(x.size()) / width;
  Unaligned<float> in(x, offset), w(weight, offset), b(bias, offset);
  Unaligned<float> out(x, offset);
  Outputs r{{}, std::vector<float>(rows), std::vector<float>(rows)};
  EXPECT_TRUE(LayerNormForward(stream, in.data(), w.data(), b.data(), rows,
                               width, kEpsilon, out.data(), r.mean.data(),
                               r.rstd.data())
                  .ok());
  r.out = out.values();
  return r;
}

TEST_P(LayerNormTest, ForwardFollowsTheFormula) {
  for (const int64_t rows : {0, 1, 7, 17, 257}) {
    for (const int64_t width : {1, 5, 16, 48, 250}) {
      std::vector<float> x = RandomFloats(1, rows * width, 2);
      for (float& v : x) v += 0.5f;
      const std::vector<float> weight = RandomFloats(2, width);
      const std::vector<float> bias = RandomFloats(3, width);
      const LayerNormReference expected = LayerNormForwardReference(
          ToDouble(x), ToDouble(weight), ToDouble(bias), kEpsilon);
      Outputs one;
      for (const int threads : {1, 2, 3}) {
        const Outputs r = Forward(StreamOf(threads), x, weight, bias, threads);

        // Mean and variance within some 2^-24 of values of about 2; of a width
        // of 1 the variance is 0, and rstd 316 times a rounding of the mean.
        const double loose = width == 1 ? 300 : 1;
        ASSERT_TRUE(AllNear(r.mean, expected.mean, 1e-6, 0));
        ASSERT_TRUE(AllNear(r.rstd, expected.rstd, 0, 2e-6 * loose));
        ASSERT_TRUE(AllNear(r.out, expected.out, 1e-5 * loose, 1e-6));
        if (threads == 1) one = r;
        ASSERT_TRUE(BitEqual(r.out, one.out));
      }
    }
  }
}

TEST_P(LayerNormTest, ALargeMeanIsTakenOutFirst) {
  // The mean of squares less the square of the mean would lose everything.
  const int64_t width = 100;
  std::vector<float> x = RandomFloats(1, width);
  for (float& v : x) v += 4096;
  const std::vector<float> ones(width, 1), zeros(width);
  const LayerNormReference expected = LayerNormForwardReference(
      ToDouble(x), ToDouble(ones), ToDouble(zeros), kEpsilon);

  const Outputs r = Forward(StreamOf(1), x, ones, zeros);

  // The mean's own rounding is 2^-12 of a deviation.
  EXPECT_TRUE(AllNear(r.out, expected.out, 1e-3, 0));
}

struct Gradients {
  std::vector<float> x, weight, bias, x_column_sums;
};

Gradients Backward(Stream& stream, const std::vector<float>& x,
                   const std::vector<float>& weight,
                   const std::vector<float>& out_gradient,
                   const std::vector<float>* residual, int64_t offset) {
  const auto width = static_cast<int64_t>(weight.size());
  const int64_t rows = static_cast<int64_t>(x.size()) / width;
  const Outputs forward = Forward(stream, x, weight, std::vector<float>(width));
  Unaligned<float> in(x, offset), w(weight, offset), g(out_gradient, offset);
  Unaligned<float> x_gradient(
      residual != nullptr
          ? *residual
          : std::vector<float>(x.size(),
                               std::numeric_limits<float>::quiet_NaN()),
      offset);
  Gradients r{{},
              std::vector<float>(width, 9),
              std::vector<float>(width, 9),
              std::vector<float>(width, 9)};
  std::vector<float> workspace(LayerNormWorkspace(rows, width), 9);
  EXPECT_TRUE(LayerNormBackward(stream, in.data(), w.data(),
                                forward.mean.data(), forward.rstd.data(),
                                g.data(), rows, width,
                                {.x = x_gradient.data(),
                                 .overwrite = residual == nullptr,
                                 .weight = r.weight.data(),
                                 .bias = r.bias.data(),
                                 .x_column_sums = r.x_column_sums.data()},
                                workspace.data())
                  .ok());
  r.x = x_gradient.values();
  return r;
}

TEST_P(LayerNormTest, BackwardFollowsTheFormula) {
  for (const int64_t rows : {0, 1, 7, 17, 257}) {
    for (const int64_t width : {5, 16, 48, 250}) {
      const std::vector<float> x = RandomFloats(1, rows * width, 2);
      const std::vector<float> weight = RandomFloats(2, width);
      const std::vector<float> g = RandomFloats(3, rows * width);
      const std::vector<float> residual = RandomFloats(4, rows * width);
      LayerNormGradientReference expected = LayerNormBackwardReference(
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
          ASSERT_TRUE(AllNear(r.bias, expected.bias, 1e-4, 1e-6));
          ASSERT_TRUE(AllNear(r.x_column_sums, sums, 3e-4, 1e-6));
          if (threads == 1) one = r;
          ASSERT_TRUE(BitEqual(r.x, one.x));
          ASSERT_TRUE(BitEqual(r.weight, one.weight));
          ASSERT_TRUE(BitEqual(r.bias, one.bias));
          ASSERT_TRUE(BitEqual(r.x_column_sums, one.x_column_sums));
        }
      }
    }
  }
}

// The double reference against its own finite differences, which is what makes
// it a reference.
TEST(LayerNormReferenceTest, BackwardIsTheSlopeOfForward) {
  const int64_t rows = 3, width = 7;
  std::vector<double> x = ToDouble(RandomFloats(1, rows * width));
  std::vector<double> weight = ToDouble(RandomFloats(2, width));
  std::vector<double> bias = ToDouble(RandomFloats(3, width));
  const std::vector<double> g = ToDouble(RandomFloats(4, rows * width));
  const auto loss = [&] {
    const auto out = LayerNormForwardReference(x, weight, bias, kEpsilon).out;
    double sum = 0;
    for (size_t i = 0; i < out.size(); ++i) sum += out[i] * g[i];
    return sum;
  };
  const auto gradients = LayerNormBackwardReference(x, weight, kEpsilon, g);
  for (const auto& [values, gradient] :
       {std::pair{&x, &gradients.x}, std::pair{&weight, &gradients.weight},
        std::pair{&bias, &gradients.bias}}) {
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

TEST_P(LayerNormTest, ANanStaysInItsRowAndReachesTheSums) {
  const int64_t rows = 4, width = 20;
  std::vector<float> x = RandomFloats(1, rows * width);
  x[2 * width + 19] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> weight = RandomFloats(2, width);
  const std::vector<float> g = RandomFloats(3, rows * width);

  const Outputs r = Forward(StreamOf(1), x, weight, weight);
  const Gradients b = Backward(StreamOf(1), x, weight, g, nullptr, 0);

  for (int64_t i = 0; i < rows * width; ++i) {
    ASSERT_EQ(std::isnan(r.out[i]), i / width == 2);
    ASSERT_EQ(std::isnan(b.x[i]), i / width == 2);
  }
  for (const float sum : b.weight) ASSERT_TRUE(std::isnan(sum));
}

TEST_P(LayerNormTest, WrongArgumentsAreRefused) {
  float f[4] = {};
  Stream& s = StreamOf(1);
  EXPECT_EQ(LayerNormForward(s, f, f, f, 1, 0, kEpsilon, f, f, f).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(LayerNormForward(s, f, nullptr, f, 1, 1, kEpsilon, f, f, f).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(LayerNormBackward(s, f, f, f, f, f, 1, 1,
                              {.x = nullptr, .weight = f, .bias = f}, f)
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lockstep::kernels
