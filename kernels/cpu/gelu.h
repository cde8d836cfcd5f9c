// kernels/gelu.h on the CPU.  Arguments are checked already.
#ifndef KERNELS_CPU_GELU_H_
#define KERNELS_CPU_GELU_H_

#include <cstdint>

#include "kernels/cpu/thread_pool.h"

namespace lockstep::kernels::cpu {

void BiasGeluForward(ThreadPool& pool, const float* x, const float* bias,
                     int64_t row_count, int64_t width, float* out);
void BiasGeluBackward(ThreadPool& pool, const float* x, const float* bias,
                      int64_t row_count, int64_t width, float* gradient,
                      float* bias_gradient, float* workspace);

}  // namespace lockstep::kernels::cpu

#endif  // KERNELS_CPU_GELU_H_
