// kernels/rotary.h on the CPU.  Arguments are checked already.
#ifndef KERNELS_CPU_ROTARY_H_
#define KERNELS_CPU_ROTARY_H_

#include "kernels/cpu/thread_pool.h"
#include "kernels/rotary.h"

namespace lockstep::kernels::cpu {

void Rotate(ThreadPool& pool, const RotaryShape& shape,
            RotaryDirection direction, const float* cosine, const float* sine,
            float* x);

}  // namespace lockstep::kernels::cpu

#endif  // KERNELS_CPU_ROTARY_H_
