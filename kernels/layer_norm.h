// Layer normalisation (Ba, Kiros, Hinton, arXiv:1607.06450) over the last
// dimension.
//
// All pointers are device memory of any float alignment; arrays do not overlap.
// row_count = 0 is a no-op, but for sums over rows, which become 0.  The bits
// of a row depend on that row alone; sums over rows are taken in one fixed
// order.
#ifndef KERNELS_LAYER_NORM_H_
#define KERNELS_LAYER_NORM_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/device.h"

namespace lockstep::kernels {

// out = (x - mean) x rstd x weight + bias, with the row's mean and
// rstd = 1 / sqrt(variance + epsilon), variance over `width`.
//
// x:            (row_count, width) read
// weight, bias: (width) read
// out:          (row_count, width) written
// mean, rstd:   (row_count) written
//
// width: positive.
absl::Status LayerNormForward(Stream& stream, const float* x,
                              const float* weight, const float* bias,
                              int64_t row_count, int64_t width, double epsilon,
                              float* out, float* mean, float* rstd);

// Elements of `workspace` below.
int64_t LayerNormWorkspace(int64_t row_count, int64_t width);

struct LayerNormGradients {
  // (row_count, width): = with `overwrite`, else +=; the gradient of x, which
  // already holds what reaches x by other ways.
  float* x = nullptr;
  bool overwrite = false;
  float* weight = nullptr;  // (width), =
  float* bias = nullptr;    // (width), =
  // (width), =: sums over rows of the final `x` above, which is the gradient
  // of a bias that was added to x.  Null if not wanted.
  float* x_column_sums = nullptr;
};

// Gradients of LayerNormForward.  With n = (x - mean) rstd and g = out x weight
// in each row (out being the gradient of Forward's out):
//
//   x      = rstd (g - mean(g) - n mean(g n))
//   weight = sum over rows of out n
//   bias   = sum over rows of out
//
// x, weight, mean, rstd: as in Forward, read
// out_gradient: (row_count, width) read
// workspace:    (LayerNormWorkspace) overwritten
absl::Status LayerNormBackward(Stream& stream, const float* x,
                               const float* weight, const float* mean,
                               const float* rstd, const float* out_gradient,
                               int64_t row_count, int64_t width,
                               const LayerNormGradients& gradients,
                               float* workspace);

}  // namespace lockstep::kernels

#endif  // KERNELS_LAYER_NORM_H_
