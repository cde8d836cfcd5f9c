#include "kernels/exact_sum_reference.h"

#include <algorithm>
#include <cmath>

namespace lockstep::kernels {

void AccumulateExactReference(const float* gradient, int64_t* sum, int64_t n,
                              int exponent, int64_t limit, int32_t* overflow) {
  for (int64_t i = 0; i < n; ++i) {
    // Exact: long double has the range.  The default rounding is to nearest,
    // ties to even.
    const long double q = std::nearbyint(
        std::ldexp(static_cast<long double>(gradient[i]), -exponent));
    if (std::fabs(q) < static_cast<long double>(limit)) {
      sum[i] += static_cast<int64_t>(q);
    } else {
      *overflow = 1;
    }
  }
}

void MaxExactReference(const int64_t* sum, int64_t n, int64_t* max) {
  for (int64_t i = 0; i < n; ++i) *max = std::max(*max, std::abs(sum[i]));
}

void AddSquaresExactReference(const int64_t* sum, int64_t n, int64_t* limbs) {
  for (int64_t i = 0; i < n; ++i) {
    const auto x = static_cast<unsigned __int128>(std::abs(sum[i]));
    unsigned __int128 carry = x * x;
    for (int k = 0; k < kSquareLimbCount; ++k) {
      const unsigned __int128 limb =
          static_cast<uint64_t>(limbs[k]) + (carry & 0xffffffffu);
      limbs[k] = static_cast<int64_t>(limb & 0xffffffffu);
      carry = (carry >> 32) + (limb >> 32);
    }
  }
}

void AdamWExactReference(double* parameter, double* moment1, double* moment2,
                         const int64_t* sum, int64_t n, const AdamWOptions& o) {
  for (int64_t i = 0; i < n; ++i) {
    const double g = std::ldexp(static_cast<double>(sum[i]), o.exponent) /
                     static_cast<double>(o.token_count) * o.clip_scale;
    moment1[i] = o.beta1 * moment1[i] + (1 - o.beta1) * g;
    moment2[i] = o.beta2 * moment2[i] + (1 - o.beta2) * g * g;
    parameter[i] -=
        o.learning_rate *
        (moment1[i] / o.bias_correction1 /
             (std::sqrt(moment2[i] / o.bias_correction2) + o.epsilon) +
         o.weight_decay * parameter[i]);
  }
}

}  // namespace lockstep::kernels
