// kernels/cross_entropy.h on the CPU.  Arguments are checked already.
#ifndef KERNELS_CPU_CROSS_ENTROPY_H_
#define KERNELS_CPU_CROSS_ENTROPY_H_

#include <cstdint>

#include "kernels/cpu/thread_pool.h"

namespace lockstep::kernels::cpu {

void CrossEntropyForward(ThreadPool& pool, const float* logits,
                         const int32_t* targets, int64_t row_count,
                         int64_t vocabulary, float* losses);
void CrossEntropyForwardBackward(ThreadPool& pool, float* logits,
                                 const int32_t* targets, int64_t row_count,
                                 int64_t vocabulary, float* losses);

}  // namespace lockstep::kernels::cpu

#endif  // KERNELS_CPU_CROSS_ENTROPY_H_
