// oneDNN's bfloat16 matrix product on the calling thread alone.
#ifndef KERNELS_CPU_BFLOAT16_GEMM_H_
#define KERNELS_CPU_BFLOAT16_GEMM_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/matmul.h"

namespace lockstep::kernels::cpu {

// C = A B + beta C, beta 0 or 1; with beta 0 the old C is not read.  m, n, k
// positive.  Sums are float32's.
//
// What is made for a shape is kept for the thread's next product of that shape;
// so are up to some MiB of work space.
//
// Errors:
//   Internal: oneDNN refused.
absl::Status Bfloat16Gemm(int64_t m, int64_t n, int64_t k,
                          const Bfloat16MatMulInput& a,
                          const Bfloat16MatMulInput& b, float beta, float* c,
                          int64_t c_stride);

}  // namespace lockstep::kernels::cpu

#endif  // KERNELS_CPU_BFLOAT16_GEMM_H_
