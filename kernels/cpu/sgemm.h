// oneDNN's matrix product on the calling thread alone.
#ifndef KERNELS_CPU_SGEMM_H_
#define KERNELS_CPU_SGEMM_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/matmul.h"

namespace lockstep::kernels::cpu {

// C = alpha A B + beta C, beta 0 or 1; with beta 0 the old C is not read.
// m, n, k positive.
//
// oneDNN gets one thread, since it splits some sums over threads, which changes
// their bits.  At 16 rows and more, a row's bits do not depend on m.
//
// Errors:
//   Internal: oneDNN refused.
absl::Status Sgemm(int64_t m, int64_t n, int64_t k, float alpha,
                   const MatMulInput& a, const MatMulInput& b, float beta,
                   float* c, int64_t c_stride);

}  // namespace lockstep::kernels::cpu

#endif  // KERNELS_CPU_SGEMM_H_
