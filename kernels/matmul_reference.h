// kernels/matmul.h in double.  For tests.
#ifndef KERNELS_MATMUL_REFERENCE_H_
#define KERNELS_MATMUL_REFERENCE_H_

#include <cstdint>
#include <vector>

#include "kernels/matmul.h"

namespace lockstep::kernels {

// A B, (m, n) without gaps.
std::vector<double> MatMulReference(int64_t m, int64_t n, int64_t k,
                                    const MatMulInput& a, const MatMulInput& b);

// The sums of the products' magnitudes, to bound a rounding by.
std::vector<double> MatMulMagnitudes(int64_t m, int64_t n, int64_t k,
                                     const Bfloat16MatMulInput& a,
                                     const Bfloat16MatMulInput& b);
std::vector<double> MatMulReference(int64_t m, int64_t n, int64_t k,
                                    const Bfloat16MatMulInput& a,
                                    const Bfloat16MatMulInput& b);

}  // namespace lockstep::kernels

#endif  // KERNELS_MATMUL_REFERENCE_H_
