// Sums of gradients that do not depend on their order.
//
// A gradient's contribution is rounded once to an integer multiple of a power
// of two, the unit 2^exponent, and added as a 64-bit integer.  Integer sums are
// the same in any order and grouping, so any split of micro-batches over ranks
// gives the same bits.
//
// All pointers are device memory; ranges must not overlap; n = 0 is a no-op;
// any n up to 2^40.
#ifndef KERNELS_EXACT_SUM_H_
#define KERNELS_EXACT_SUM_H_

#include <cstdint>

#include "absl/status/status.h"
#include "common/commit_words.h"
#include "kernels/device.h"

namespace lockstep::kernels {

// Squares are carried as this many limbs of 32 bits, least significant first,
// each in an int64: limbs of up to 2^31 ranks can be added without a carry.
using lockstep::kSquareLimbCount;

// sum[i] += q(gradient[i]), where q(g) = g x 2^-exponent rounded to the nearest
// integer, ties to even.
//
// gradient: (n) read
// sum:      (n) read and written
// overflow: (1) set to 1, and the element left out of the sum, where
// gradient[i]
//           is not finite or |q| >= limit; otherwise left as it is
//
// exponent: -1,000 to 1,000.  limit: 1 to 2^62.
absl::Status AccumulateExact(Stream& stream, const float* gradient,
                             int64_t* sum, int64_t n, int exponent,
                             int64_t limit, int32_t* overflow);

// *max = the larger of *max and every |sum[i]|.
//
// sum: (n) read; no element is -2^63
// max: (1) read and written
absl::Status MaxExact(Stream& stream, const int64_t* sum, int64_t n,
                      int64_t* max);

// limbs += the sum over i of sum[i]^2, exactly.  On entry and exit every limb
// is 0 to 2^32 - 1; the total must stay below 2^192.
//
// sum:   (n) read; |sum[i]| < 2^62
// limbs: (kSquareLimbCount) read and written
absl::Status AddSquaresExact(Stream& stream, const int64_t* sum, int64_t n,
                             int64_t* limbs);

// How a reduced sum becomes a step of AdamW.
struct AdamWOptions {
  int exponent = 0;         // The sum's unit is 2^exponent.
  int64_t token_count = 1;  // Counted tokens of the whole step; positive.
  double clip_scale = 1;    // Factor on the gradient, 0 to 1.
  double learning_rate = 0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0;
  // 1 - beta^t, t counting applied updates from 1.
  double bias_correction1 = 1;
  double bias_correction2 = 1;
};

// One AdamW step straight from the exact sum (Loshchilov and Hutter,
// arXiv:1711.05101, as PyTorch orders it: decay and step from the old
// parameter).  In float32 but for the gradient, which is rounded to float32
// once:
//
//   g = float(double(sum[i]) x 2^exponent / token_count x clip_scale)
//   m = beta1 m + (1 - beta1) g
//   v = beta2 v + (1 - beta2) g g
//   p = p - lr (m / c1 / (sqrt(v / c2) + epsilon) + weight_decay p)
//
// sum:       (n) read
// parameter, moment1, moment2: (n) read and written
absl::Status AdamWExact(Stream& stream, float* parameter, float* moment1,
                        float* moment2, const int64_t* sum, int64_t n,
                        const AdamWOptions& options);

}  // namespace lockstep::kernels

#endif  // KERNELS_EXACT_SUM_H_
