// kernels/swiglu.h on the CPU.  Arguments are checked already.
#ifndef KERNELS_CPU_SWIGLU_H_
#define KERNELS_CPU_SWIGLU_H_

#include <cstdint>

#include "kernels/cpu/thread_pool.h"

namespace lockstep::kernels::cpu {

void SwiGluForward(ThreadPool& pool, const float* x, int64_t row_count,
                   int64_t width, float* out, int64_t out_stride);
void SwiGluBackward(ThreadPool& pool, float* x, const float* out_gradient,
                    int64_t row_count, int64_t width);

}  // namespace lockstep::kernels::cpu

#endif  // KERNELS_CPU_SWIGLU_H_
