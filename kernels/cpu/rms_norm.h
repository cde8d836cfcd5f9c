// kernels/rms_norm.h on the CPU.  Arguments are checked already.
#ifndef KERNELS_CPU_RMS_NORM_H_
#define KERNELS_CPU_RMS_NORM_H_

#include <cstdint>

#include "kernels/cpu/thread_pool.h"
#include "kernels/rms_norm.h"

namespace lockstep::kernels::cpu {

void RmsNormForward(ThreadPool& pool, const float* x, const float* weight,
                    int64_t row_count, int64_t width, double epsilon,
                    float* out, float* rstd);
void RmsNormBackward(ThreadPool& pool, const float* x, const float* weight,
                     const float* rstd, const float* out_gradient,
                     int64_t row_count, int64_t width,
                     const RmsNormGradients& gradients, float* workspace);

}  // namespace lockstep::kernels::cpu

#endif  // KERNELS_CPU_RMS_NORM_H_
