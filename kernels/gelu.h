// GELU in its tanh form (Hendrycks and Gimpel, arXiv:1606.08415), with the bias
// of the product before it.
//
// All pointers are device memory of any float alignment; arrays do not overlap.
// The bits of an element depend on that element alone, those of the bias's
// gradient not on the number of threads.
#ifndef KERNELS_GELU_H_
#define KERNELS_GELU_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/device.h"

namespace lockstep::kernels {

// out = gelu(x + bias), where
//
//   gelu(z) = z / 2 (1 + tanh(sqrt(2 / pi) (z + 0.044715 z^3)))
//
// x:    (row_count, width) read
// bias: (width) read
// out:  (row_count, width) written; may be x
absl::Status BiasGeluForward(Stream& stream, const float* x, const float* bias,
                             int64_t row_count, int64_t width, float* out);

// Elements of `workspace` below.
int64_t BiasGeluWorkspace(int64_t row_count, int64_t width);

// gradient = gradient x gelu'(x + bias); bias_gradient = its sum over rows.
//
// x, bias:       as in Forward, read
// gradient:      (row_count, width) of Forward's out, overwritten with x's
// bias_gradient: (width) written
// workspace:     (BiasGeluWorkspace) overwritten
absl::Status BiasGeluBackward(Stream& stream, const float* x, const float* bias,
                              int64_t row_count, int64_t width, float* gradient,
                              float* bias_gradient, float* workspace);

}  // namespace lockstep::kernels

#endif  // KERNELS_GELU_H_
