// kernels/embedding.h on the CPU.  Arguments are checked already.
#ifndef KERNELS_CPU_EMBEDDING_H_
#define KERNELS_CPU_EMBEDDING_H_

#include <cstdint>

#include "kernels/cpu/thread_pool.h"

namespace lockstep::kernels::cpu {

void EmbeddingForward(ThreadPool& pool, const int32_t* tokens,
                      const float* token_table, const float* position_table,
                      int64_t row_count, int64_t sequence_length, int64_t width,
                      float* out);
// table[tokens[i]] += rows[i], in order of i.
void AddTokenRows(ThreadPool& pool, const int32_t* tokens, const float* rows,
                  int64_t token_count, int64_t width, float* table);
void PositionEmbeddingBackward(ThreadPool& pool, const float* gradient,
                               int64_t row_count, int64_t sequence_length,
                               int64_t position_max, int64_t width,
                               float* table_gradient);

}  // namespace lockstep::kernels::cpu

#endif  // KERNELS_CPU_EMBEDDING_H_
