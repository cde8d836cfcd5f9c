// kernels/layer_norm.h on the CPU.  Arguments are checked already.
#ifndef KERNELS_CPU_LAYER_NORM_H_
#define KERNELS_CPU_LAYER_NORM_H_

#include <cstdint>

#include "kernels/cpu/thread_pool.h"
#include "kernels/layer_norm.h"

namespace lockstep::kernels::cpu {

void LayerNormForward(ThreadPool& pool, const float* x, const float* weight,
                      const float* bias, int64_t row_count, int64_t width,
                      double epsilon, float* out, float* mean, float* rstd);
void LayerNormBackward(ThreadPool& pool, const float* x, const float* weight,
                       const float* mean, const float* rstd,
                       const float* out_gradient, int64_t row_count,
                       int64_t width, const LayerNormGradients& gradients,
                       float* workspace);

}  // namespace lockstep::kernels::cpu

#endif  // KERNELS_CPU_LAYER_NORM_H_
