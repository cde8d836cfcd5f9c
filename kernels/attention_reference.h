// kernels/attention.h in double.  For tests.
#ifndef KERNELS_ATTENTION_REFERENCE_H_
#define KERNELS_ATTENTION_REFERENCE_H_

#include <vector>

#include "kernels/attention.h"

namespace lockstep::kernels {

struct AttentionReference {
  std::vector<double> out;          // (row_count, sequence_length, width)
  std::vector<double> log_sum_exp;  // (row_count, head_count, sequence_length)
};
// `dropout` may be null.
AttentionReference AttentionForwardReference(
    const AttentionShape& shape, const std::vector<double>& qkv,
    const DropoutMask* dropout = nullptr);

// The gradient of qkv.
std::vector<double> AttentionBackwardReference(
    const AttentionShape& shape, const std::vector<double>& qkv,
    const std::vector<double>& out_gradient,
    const DropoutMask* dropout = nullptr);

}  // namespace lockstep::kernels

#endif  // KERNELS_ATTENTION_REFERENCE_H_
