// kernels/bfloat16.h on the CPU.  Arguments are checked already.
#ifndef KERNELS_CPU_BFLOAT16_H_
#define KERNELS_CPU_BFLOAT16_H_

#include <cstdint>

#include "kernels/bfloat16.h"
#include "kernels/cpu/thread_pool.h"

namespace lockstep::kernels::cpu {

void RoundToBfloat16(ThreadPool& pool, const float* x, int64_t stride,
                     int64_t row_count, int64_t width, Bfloat16* out);

}  // namespace lockstep::kernels::cpu

#endif  // KERNELS_CPU_BFLOAT16_H_
