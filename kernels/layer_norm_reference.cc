#include "kernels/layer_norm_reference.h"

#include <cmath>

namespace lockstep::kernels {

LayerNormReference LayerNormForwardReference(const std::vector<double>& x,
                                             const std::vector<double>& weight,
                                             const std::vector<double>& bias,
                                             double epsilon) {
  const auto width = static_cast<int64_t>(weight.size());
  const int64_t row_count = static_cast<int64_t>(x.size()) / width;
  LayerNormReference r{std::vector<double>(x.size()),
                       std::vector<double>(row_count),
                       std::vector<double>(row_count)};
  for (int64_t row = 0; row < row_count; ++row) {
    const double* const xs = &x[row * width];
    double mean = 0;
    for (int64_t i = 0; i < width; ++i) mean += xs[i] / width;
    double variance = 0;
    for (int64_t i = 0; i < width; ++i) {
      variance += (xs[i] - mean) * (xs[i] - mean) / width;
    }
    const double rstd = 1 / std::sqrt(variance + epsilon);
    for (int64_t i = 0; i < width; ++i) {
      r.out[row * width + i] = (xs[i] - mean) * rstd * weight[i] + bias[i];
    }
    r.mean[row] = mean;
    r.rstd[row] = rstd;
  }
  return r;
}

LayerNormGradientReference LayerNormBackwardReference(
    const std::vector<double>& x, const std::vector<double>& weight,
    double epsilon, const std::vector<double>& out_gradient) {
  const auto width = static_cast<int64_t>(weight.size());
  const int64_t row_count = static_cast<int64_t>(x.size()) / width;
  const LayerNormReference forward =
      LayerNormForwardReference(x, weight, std::vector<double>(width), epsilon);
  LayerNormGradientReference r{std::vector<double>(x.size()),
                               std::vector<double>(width),
                               std::vector<double>(width)};
  for (int64_t row = 0; row < row_count; ++row) {
    const auto normal = [&](int64_t i) {
      return (x[row * width + i] - forward.mean[row]) * forward.rstd[row];
    };
    double g_mean = 0, gn_mean = 0;
    for (int64_t i = 0; i < width; ++i) {
      const double out = out_gradient[row * width + i];
      r.weight[i] += out * normal(i);
      r.bias[i] += out;
      g_mean += out * weight[i] / width;
      gn_mean += out * weight[i] * normal(i) / width;
    }
    for (int64_t i = 0; i < width; ++i) {
      const double g = out_gradient[row * width + i] * weight[i];
      r.x[row * width + i] =
          forward.rstd[row] * (g - g_mean - normal(i) * gn_mean);
    }
  }
  return r;
}

}  // namespace lockstep::kernels
