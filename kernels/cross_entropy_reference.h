// kernels/cross_entropy.h in double.  For tests.
#ifndef KERNELS_CROSS_ENTROPY_REFERENCE_H_
#define KERNELS_CROSS_ENTROPY_REFERENCE_H_

#include <cstdint>
#include <vector>

namespace lockstep::kernels {

struct CrossEntropyReference {
  std::vector<double> losses;    // (row_count)
  std::vector<double> gradient;  // (row_count, vocabulary)
};
CrossEntropyReference CrossEntropyOf(const std::vector<double>& logits,
                                     const std::vector<int32_t>& targets);

}  // namespace lockstep::kernels

#endif  // KERNELS_CROSS_ENTROPY_REFERENCE_H_
