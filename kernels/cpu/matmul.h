// kernels/matmul.h on the CPU.  Arguments are checked already; m, n > 0.
#ifndef KERNELS_CPU_MATMUL_H_
#define KERNELS_CPU_MATMUL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/matmul.h"

namespace lockstep::kernels::cpu {

absl::Status MatMul(ThreadPool& pool, int64_t m, int64_t n, int64_t k,
                    const MatMulInput& a, const MatMulInput& b, float* c,
                    int64_t c_stride, const MatMulOptions& options);
absl::Status MatMul(ThreadPool& pool, int64_t m, int64_t n, int64_t k,
                    const Bfloat16MatMulInput& a, const Bfloat16MatMulInput& b,
                    float* c, int64_t c_stride, const MatMulOptions& options);

}  // namespace lockstep::kernels::cpu

#endif  // KERNELS_CPU_MATMUL_H_
