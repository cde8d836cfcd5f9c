// kernels/rms_norm.h in double precision, plainly.
#ifndef KERNELS_RMS_NORM_REFERENCE_H_
#define KERNELS_RMS_NORM_REFERENCE_H_

#include <vector>

#include "kernels/rms_norm.h"

namespace lockstep::kernels {

struct RmsNormReference {
  std::vector<double> out, rstd;
};

// The width is that of `weight`.
RmsNormReference RmsNormForwardReference(const std::vector<double>& x,
                                         const std::vector<double>& weight,
                                         double epsilon);

struct RmsNormGradientReference {
  std::vector<double> x, weight;
};

RmsNormGradientReference RmsNormBackwardReference(
    const std::vector<double>& x, const std::vector<double>& weight,
    double epsilon, const std::vector<double>& out_gradient);

}  // namespace lockstep::kernels

#endif  // KERNELS_RMS_NORM_REFERENCE_H_
