// kernels/embedding.h in double.  For tests.
#ifndef KERNELS_EMBEDDING_REFERENCE_H_
#define KERNELS_EMBEDDING_REFERENCE_H_

#include <cstdint>
#include <vector>

namespace lockstep::kernels {

std::vector<double> EmbeddingForwardReference(
    const std::vector<int32_t>& tokens, const std::vector<double>& token_table,
    const std::vector<double>& position_table, int64_t sequence_length,
    int64_t width);

// Gradients of both tables.
struct EmbeddingGradientReference {
  std::vector<double> token_table, position_table;
};
EmbeddingGradientReference EmbeddingBackwardReference(
    const std::vector<int32_t>& tokens, const std::vector<double>& gradient,
    int64_t sequence_length, int64_t vocabulary, int64_t position_max,
    int64_t width);

}  // namespace lockstep::kernels

#endif  // KERNELS_EMBEDDING_REFERENCE_H_
