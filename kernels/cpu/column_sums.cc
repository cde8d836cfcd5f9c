#include "kernels/cpu/column_sums.h"

#include "kernels/cpu/row_sums.h"

namespace lockstep::kernels::cpu {

void ColumnSums(ThreadPool& pool, const float* x, int64_t row_count,
                int64_t width, float* out, float* workspace) {
  // Within a task the pool's loops run on the task's own thread.
  ParallelForBlocks(pool, row_count, kRowSumsBlock,
                    [&](int64_t begin, int64_t end, int) {
                      SumRows(pool, x + begin * width, end - begin, width,
                              width, workspace + begin / kRowSumsBlock * width);
                    });
  SumRows(pool, workspace, RowSumsBlockCount(row_count), width, width, out);
}

}  // namespace lockstep::kernels::cpu
