// Softmax and cross-entropy of logits, with the gradient, in one go.
//
// All pointers are device memory of any float alignment; arrays do not overlap;
// row_count = 0 is a no-op.  The bits of a row depend on that row alone.  A NaN
// or a positive infinity among the logits ends in a loss that is not finite.
#ifndef KERNELS_CROSS_ENTROPY_H_
#define KERNELS_CROSS_ENTROPY_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/device.h"

namespace lockstep::kernels {

// losses[r] = log(sum over v of exp(logits[r, v])) - logits[r, targets[r]],
// and 0 for a row that does not count.
//
// logits:  (row_count, vocabulary) read
// targets: (row_count) read; each 0 to vocabulary - 1, which the caller checks,
//          or negative: the row does not count
// losses:  (row_count) written
//
// vocabulary: positive.
absl::Status CrossEntropyForward(Stream& stream, const float* logits,
                                 const int32_t* targets, int64_t row_count,
                                 int64_t vocabulary, float* losses);

// The same losses; and logits, in place, become the gradient of their sum:
//
//   logits[r, v] = exp(logits[r, v]) / (sum over w of exp(logits[r, w]))
//                  - (v = targets[r])
//
// and 0 in a row that does not count.
//
// logits: (row_count, vocabulary) read and written
absl::Status CrossEntropyForwardBackward(Stream& stream, float* logits,
                                         const int32_t* targets,
                                         int64_t row_count, int64_t vocabulary,
                                         float* losses);

}  // namespace lockstep::kernels

#endif  // KERNELS_CROSS_ENTROPY_H_
