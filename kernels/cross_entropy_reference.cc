#include "kernels/cross_entropy_reference.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace lockstep::kernels {

CrossEntropyReference CrossEntropyOf(const std::vector<double>& logits,
                                     const std::vector<int32_t>& targets) {
  CrossEntropyReference r;
  r.gradient = logits;
  const int64_t row_count = std::ssize(targets);
  const int64_t vocabulary =
      row_count == 0 ? 0 : std::ssize(logits) / row_count;
  for (int64_t row = 0; row < row_count; ++row) {
    double* const x = &r.gradient[row * vocabulary];
    if (targets[row] < 0) {
      std::fill(x, x + vocabulary, 0);
      r.losses.push_back(0);
      continue;
    }
    const double max = *std::max_element(x, x + vocabulary);
    double sum = 0;
    for (int64_t v = 0; v < vocabulary; ++v) sum += std::exp(x[v] - max);
    r.losses.push_back(std::log(sum) + max - x[targets[row]]);
    for (int64_t v = 0; v < vocabulary; ++v) x[v] = std::exp(x[v] - max) / sum;
    x[targets[row]] -= 1;
  }
  return r;
}

}  // namespace lockstep::kernels
