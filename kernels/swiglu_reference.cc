#include "kernels/swiglu_reference.h"

#include <cmath>

namespace lockstep::kernels {

double SwiGluReference(double gate, double up) {
  return gate / (1 + std::exp(-gate)) * up;
}

SwiGluSlopes SwiGluDerivativeReference(double gate, double up) {
  const double s = 1 / (1 + std::exp(-gate));
  return {.gate = up * (s + gate * s * (1 - s)), .up = gate * s};
}

}  // namespace lockstep::kernels
