#include "kernels/gelu_reference.h"

#include <cmath>
#include <numbers>

namespace lockstep::kernels {
namespace {

const double kScale = std::sqrt(2 / std::numbers::pi);
constexpr double kCubic = 0.044715;

}  // namespace

double GeluReference(double z) {
  return z / 2 * (1 + std::tanh(kScale * (z + kCubic * z * z * z)));
}

double GeluDerivativeReference(double z) {
  const double t = std::tanh(kScale * (z + kCubic * z * z * z));
  return (1 + t) / 2 + z / 2 * (1 - t * t) * kScale * (1 + 3 * kCubic * z * z);
}

}  // namespace lockstep::kernels
