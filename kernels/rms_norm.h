// Root-mean-square normalisation (Zhang and Sennrich, arXiv:1910.07467) over
// the last dimension.
//
// All pointers are device memory of any float alignment; arrays do not overlap.
// row_count = 0 is a no-op, but for sums over rows, which become 0.  The bits
// of a row depend on that row alone; sums over rows are taken in one fixed
// order.
#ifndef KERNELS_RMS_NORM_H_
#define KERNELS_RMS_NORM_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/device.h"

namespace lockstep::kernels {

// out = x * rstd * weight, with the row's rstd = 1 / sqrt(mean(x^2) + epsilon).
//
// x:      (row_count, width) read
// weight: (width) read
// out:    (row_count, width) written
// rstd:   (row_count) written
//
// width: positive.
absl::Status RmsNormForward(Stream& stream, const float* x, const float* weight,
                            int64_t row_count, int64_t width, double epsilon,
                            float* out, float* rstd);

// Elements of `workspace` below.
int64_t RmsNormWorkspace(int64_t row_count, int64_t width);

struct RmsNormGradients {
  // (row_count, width): = with `overwrite`, else +=; the gradient of x, which
  // already holds what reaches x by other ways.
  float* x = nullptr;
  bool overwrite = false;
  float* weight = nullptr;  // (width), =
  // (width), =: sums over rows of the final `x` above, which is the gradient
  // of a bias that was added to x.  Null if not wanted.
  float* x_column_sums = nullptr;
};

// Gradients of RmsNormForward.  With n = x rstd and g = out x weight in each
// row (out being the gradient of Forward's out):
//
//   x      = rstd (g - n mean(g n))
//   weight = sum over rows of out n
//
// x, weight, rstd: as in Forward, read
// out_gradient:    (row_count, width) read
// workspace:       (RmsNormWorkspace) overwritten
absl::Status RmsNormBackward(Stream& stream, const float* x,
                             const float* weight, const float* rstd,
                             const float* out_gradient, int64_t row_count,
                             int64_t width, const RmsNormGradients& gradients,
                             float* workspace);

}  // namespace lockstep::kernels

#endif  // KERNELS_RMS_NORM_H_
