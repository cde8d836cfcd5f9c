// kernels/column_sums.h on the CPU.  Arguments are checked already.
#ifndef KERNELS_CPU_COLUMN_SUMS_H_
#define KERNELS_CPU_COLUMN_SUMS_H_

#include <cstdint>

#include "kernels/cpu/thread_pool.h"

namespace lockstep::kernels::cpu {

void ColumnSums(ThreadPool& pool, const float* x, int64_t row_count,
                int64_t width, float* out, float* workspace);

}  // namespace lockstep::kernels::cpu

#endif  // KERNELS_CPU_COLUMN_SUMS_H_
