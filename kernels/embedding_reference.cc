#include "kernels/embedding_reference.h"

#include <iterator>

namespace lockstep::kernels {

std::vector<double> EmbeddingForwardReference(
    const std::vector<int32_t>& tokens, const std::vector<double>& token_table,
    const std::vector<double>& position_table, int64_t sequence_length,
    int64_t width) {
  std::vector<double> out;
  for (int64_t i = 0; i < std::ssize(tokens); ++i) {
    for (int64_t c = 0; c < width; ++c) {
      out.push_back(token_table[tokens[i] * width + c] +
                    position_table[i % sequence_length * width + c]);
    }
  }
  return out;
}

EmbeddingGradientReference EmbeddingBackwardReference(
    const std::vector<int32_t>& tokens, const std::vector<double>& gradient,
    int64_t sequence_length, int64_t vocabulary, int64_t position_max,
    int64_t width) {
  EmbeddingGradientReference r{std::vector<double>(vocabulary * width),
                               std::vector<double>(position_max * width)};
  for (int64_t i = 0; i < std::ssize(tokens); ++i) {
    for (int64_t c = 0; c < width; ++c) {
      r.token_table[tokens[i] * width + c] += gradient[i * width + c];
      r.position_table[i % sequence_length * width + c] +=
          gradient[i * width + c];
    }
  }
  return r;
}

}  // namespace lockstep::kernels
