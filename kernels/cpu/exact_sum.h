// kernels/exact_sum.h on the CPU.  Arguments are checked already; n > 0.
#ifndef KERNELS_CPU_EXACT_SUM_H_
#define KERNELS_CPU_EXACT_SUM_H_

#include <cstdint>

#include "kernels/cpu/thread_pool.h"
#include "kernels/exact_sum.h"

namespace lockstep::kernels::cpu {

void AccumulateExact(ThreadPool& pool, const float* gradient, int64_t* sum,
                     int64_t n, int exponent, int64_t limit, int32_t* overflow);
void MaxExact(ThreadPool& pool, const int64_t* sum, int64_t n, int64_t* max);
void AddSquaresExact(ThreadPool& pool, const int64_t* sum, int64_t n,
                     int64_t* limbs);
void AdamWExact(ThreadPool& pool, float* parameter, float* moment1,
                float* moment2, const int64_t* sum, int64_t n,
                const AdamWOptions& options);

}  // namespace lockstep::kernels::cpu

#endif  // KERNELS_CPU_EXACT_SUM_H_
