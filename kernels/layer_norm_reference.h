// kernels/layer_norm.h in double.  For tests.
#ifndef KERNELS_LAYER_NORM_REFERENCE_H_
#define KERNELS_LAYER_NORM_REFERENCE_H_

#include <cstdint>
#include <vector>

namespace lockstep::kernels {

struct LayerNormReference {
  std::vector<double> out;         // (row_count, width)
  std::vector<double> mean, rstd;  // (row_count)
};
LayerNormReference LayerNormForwardReference(const std::vector<double>& x,
                                             const std::vector<double>& weight,
                                             const std::vector<double>& bias,
                                             double epsilon);

struct LayerNormGradientReference {
  std::vector<double> x;             // (row_count, width)
  std::vector<double> weight, bias;  // (width)
};
LayerNormGradientReference LayerNormBackwardReference(
    const std::vector<double>& x, const std::vector<double>& weight,
    double epsilon, const std::vector<double>& out_gradient);

}  // namespace lockstep::kernels

#endif  // KERNELS_LAYER_NORM_REFERENCE_H_
