#include "kernels/rms_norm_reference.h"

#include <cmath>

namespace lockstep::kernels {

RmsNormReference RmsNormForwardReference(const std::vector<double>& x,
                                         const std::vector<double>& weight,
                                         double epsilon) {
  const auto width = static_cast<int64_t>(weight.size());
  const int64_t row_count = static_cast<int64_t>(x.size()) / width;
  RmsNormReference r{std::vector<double>(x.size()),
                     std::vector<double>(row_count)};
  for (int64_t row = 0; row < row_count; ++row) {
    const double* const xs = &x[row * width];
    double square = 0;
    for (int64_t i = 0; i < width; ++i) square += xs[i] * xs[i] / width;
    r.rstd[row] = 1 / std::sqrt(square + epsilon);
    for (int64_t i = 0; i < width; ++i) {
      r.out[row * width + i] = xs[i] * r.rstd[row] * weight[i];
    }
  }
  return r;
}

RmsNormGradientReference RmsNormBackwardReference(
    const std::vector<double>& x, const std::vector<double>& weight,
    double epsilon, const std::vector<double>& out_gradient) {
  const auto width = static_cast<int64_t>(weight.size());
  const int64_t row_count = static_cast<int64_t>(x.size()) / width;
  const RmsNormReference forward = RmsNormForwardReference(x, weight, epsilon);
  RmsNormGradientReference r{std::vector<double>(x.size()),
                             std::vector<double>(width)};
  for (int64_t row = 0; row < row_count; ++row) {
    const double rstd = forward.rstd[row];
    double gn_mean = 0;
    for (int64_t i = 0; i < width; ++i) {
      const double out = out_gradient[row * width + i];
      const double normal = x[row * width + i] * rstd;
      r.weight[i] += out * normal;
      gn_mean += out * weight[i] * normal / width;
    }
    for (int64_t i = 0; i < width; ++i) {
      const double g = out_gradient[row * width + i] * weight[i];
      const double normal = x[row * width + i] * rstd;
      r.x[row * width + i] = rstd * (g - normal * gn_mean);
    }
  }
  return r;
}

}  // namespace lockstep::kernels
