// From exact sums of squares to norms.
#ifndef WORKER_PARALLEL_EXACT_NORM_H_
#define WORKER_PARALLEL_EXACT_NORM_H_

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/exact_sum.h"

namespace lockstep {

// The value of `limbs` (kSquareLimbCount, least significant first, each the sum
// over up to 2^31 ranks of limbs of 32 bits; the total is below 2^192) times
// 2^(2 exponent), rounded once to double, ties to even.  |exponent| <= 500.
double SquaresToDouble(absl::Span<const int64_t> limbs, int exponent);

}  // namespace lockstep

#endif  // WORKER_PARALLEL_EXACT_NORM_H_
