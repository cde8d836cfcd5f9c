// Token and position embeddings.
//
// All pointers are device memory; arrays do not overlap; row_count = 0 leaves
// only the zeros of gradients.  Tokens must be 0 to vocabulary - 1: the caller
// checks them, where it still has them in host memory.
#ifndef KERNELS_EMBEDDING_H_
#define KERNELS_EMBEDDING_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/device.h"

namespace lockstep::kernels {

// out[r, t] = token_table[tokens[r, t]] + position_table[t]; without a
// position_table, just the first.
//
// tokens:         (row_count, sequence_length) read
// token_table:    (vocabulary, width) read
// position_table: (at least sequence_length, width) read; may be null
// out:            (row_count, sequence_length, width) written
absl::Status EmbeddingForward(Stream& stream, const int32_t* tokens,
                              const float* token_table,
                              const float* position_table, int64_t row_count,
                              int64_t sequence_length, int64_t width,
                              float* out);

// table_gradient[v] = the sum of gradient[i] over the i with tokens[i] = v, in
// order of i; zero for a token that does not occur.
//
// tokens:         (token_count) read
// gradient:       (token_count, width) read
// table_gradient: (vocabulary, width) written
absl::Status TokenEmbeddingBackward(Stream& stream, const int32_t* tokens,
                                    const float* gradient, int64_t token_count,
                                    int64_t vocabulary, int64_t width,
                                    float* table_gradient);

// table_gradient[t] = the sum over rows r of gradient[r, t], in order of r;
// zero for t >= sequence_length.
//
// gradient:       (row_count, sequence_length, width) read
// table_gradient: (position_max, width) written
//
// position_max: at least sequence_length.
absl::Status PositionEmbeddingBackward(Stream& stream, const float* gradient,
                                       int64_t row_count,
                                       int64_t sequence_length,
                                       int64_t position_max, int64_t width,
                                       float* table_gradient);

}  // namespace lockstep::kernels

#endif  // KERNELS_EMBEDDING_H_
