// kernels/exact_sum.h written for being right: one element after the other, in
// host memory.  For tests.
#ifndef KERNELS_EXACT_SUM_REFERENCE_H_
#define KERNELS_EXACT_SUM_REFERENCE_H_

#include <cstdint>

#include "kernels/exact_sum.h"

namespace lockstep::kernels {

void AccumulateExactReference(const float* gradient, int64_t* sum, int64_t n,
                              int exponent, int64_t limit, int32_t* overflow);
void MaxExactReference(const int64_t* sum, int64_t n, int64_t* max);
void AddSquaresExactReference(const int64_t* sum, int64_t n, int64_t* limbs);
// In double throughout.
void AdamWExactReference(double* parameter, double* moment1, double* moment2,
                         const int64_t* sum, int64_t n,
                         const AdamWOptions& options);

}  // namespace lockstep::kernels

#endif  // KERNELS_EXACT_SUM_REFERENCE_H_
