// Causal self-attention of all heads, forward and backward, without ever
// holding a sequence's (T, T) scores: they are computed for some rows at a time
// and again in backward, from the saved log-sum-exp (as Dao et al. do,
// arXiv:2205.14135).  Consecutive query heads may share a head of keys and
// values (Ainslie et al., arXiv:2305.13245).
//
// All pointers are device memory of any float alignment; arrays do not overlap.
// The bits of a row and head depend on its queries, keys and values alone, not
// on the number of threads.  A NaN or an infinity reaches the positions that
// see it and no others.
#ifndef KERNELS_ATTENTION_H_
#define KERNELS_ATTENTION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/device.h"
#include "kernels/dropout_mask.h"

namespace lockstep::kernels {

struct AttentionShape {
  int64_t row_count = 0;  // Sequences; 0 is a no-op.
  int64_t sequence_length = 0;
  int64_t head_count = 0;  // Of queries.
  // Of keys and of values; divides head_count: query head h reads the head
  // h / (head_count / key_value_head_count).
  int64_t key_value_head_count = 0;
  int64_t head_width = 0;

  int64_t width() const { return head_count * head_width; }
  int64_t key_value_width() const { return key_value_head_count * head_width; }
  int64_t qkv_width() const { return width() + 2 * key_value_width(); }
};

// Elements of `workspace` below, for a stream of this device.
int64_t AttentionWorkspace(Device& device, const AttentionShape& shape);

// For each sequence, head and position t, over positions s <= t:
//
//   p[t, s] = softmax over s of (q[t] . k[s] / sqrt(head_width))
//   out[t]  = sum over s of p[t, s] v[s]
//
// With `dropout` each p[t, s] is dropped, or divided by 1 - rate, before it
// meets v[s]: of head h it is element (h sequence_length + t) stride + s of the
// sequence's mask, stride being sequence_length rounded up to a multiple of 4.
//
// qkv:         (row_count, sequence_length, qkv_width) read: the queries of all
//              heads, then their keys, then values
// out:         (row_count, sequence_length, width) written
// log_sum_exp: (row_count, head_count, sequence_length) written: of the scaled
//              scores
// workspace:   (AttentionWorkspace) overwritten
absl::Status AttentionForward(Stream& stream, const AttentionShape& shape,
                              const float* qkv, float* out, float* log_sum_exp,
                              float* workspace,
                              const DropoutMask* dropout = nullptr);

// qkv_gradient = the gradient of qkv, given that of out.
//
// qkv, out, log_sum_exp: as Forward left them, read
// out_gradient: (row_count, sequence_length, width) read
// dropout:      as in Forward
// qkv_gradient: (row_count, sequence_length, qkv_width) written
// workspace:    (AttentionWorkspace) overwritten
absl::Status AttentionBackward(Stream& stream, const AttentionShape& shape,
                               const float* qkv, const float* out,
                               const float* log_sum_exp,
                               const float* out_gradient, float* qkv_gradient,
                               float* workspace,
                               const DropoutMask* dropout = nullptr);

}  // namespace lockstep::kernels

#endif  // KERNELS_ATTENTION_H_
