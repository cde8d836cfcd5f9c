// kernels/dropout.h on the CPU.  Arguments are checked already.
#ifndef KERNELS_CPU_DROPOUT_H_
#define KERNELS_CPU_DROPOUT_H_

#include <cstdint>

#include "kernels/cpu/thread_pool.h"
#include "kernels/dropout.h"

namespace lockstep::kernels::cpu {

void Dropout(ThreadPool& pool, const DropoutMask& mask, const float* x,
             const float* residual, int64_t row_count, int64_t row_size,
             float* out);

}  // namespace lockstep::kernels::cpu

#endif  // KERNELS_CPU_DROPOUT_H_
