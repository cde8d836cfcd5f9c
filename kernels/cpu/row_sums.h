// Sums over rows in one fixed order, whatever the number of threads.
//
// Rows go in blocks of kRowSumsBlock.  A kernel adds the rows of a block, in
// order, into the block's own row of a workspace; SumRows then adds those.
#ifndef KERNELS_CPU_ROW_SUMS_H_
#define KERNELS_CPU_ROW_SUMS_H_

#include <cstdint>

#include "common/kernel_workspace.h"
#include "kernels/cpu/thread_pool.h"

namespace lockstep::kernels::cpu {

using workspace::kRowSumsBlock;
using workspace::RowSumsBlockCount;

// out[i] = the sum over rows r of rows[r * stride + i], in order of r; 0 for no
// rows.
void SumRows(ThreadPool& pool, const float* rows, int64_t row_count,
             int64_t stride, int64_t width, float* out);

}  // namespace lockstep::kernels::cpu

#endif  // KERNELS_CPU_ROW_SUMS_H_
