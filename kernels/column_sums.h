// Sums over the rows of a matrix: the gradient of a bias.
#ifndef KERNELS_COLUMN_SUMS_H_
#define KERNELS_COLUMN_SUMS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/device.h"

namespace lockstep::kernels {

// Elements of `workspace` below.
int64_t ColumnSumsWorkspace(int64_t row_count, int64_t width);

// out[i] = the sum over rows r of x[r, i], in one fixed order.
//
// x:         (row_count, width) read
// out:       (width) written; zeros for no rows
// workspace: (ColumnSumsWorkspace) overwritten
//
// Device memory of any float alignment; arrays do not overlap.
absl::Status ColumnSums(Stream& stream, const float* x, int64_t row_count,
                        int64_t width, float* out, float* workspace);

}  // namespace lockstep::kernels

#endif  // KERNELS_COLUMN_SUMS_H_
