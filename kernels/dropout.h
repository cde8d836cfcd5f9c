// Dropout (Srivastava et al., JMLR 15, 2014), with the mask of
// kernels/dropout_mask.h.
//
// All pointers are device memory of any float alignment.
#ifndef KERNELS_DROPOUT_H_
#define KERNELS_DROPOUT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/device.h"
#include "kernels/dropout_mask.h"

namespace lockstep::kernels {

// out[r, i] = residual[r, i] + (x[r, i] / (1 - rate) if (r, i) is kept, else 0)
//
// That is also the gradient of x, given that of out as `x`, without residual.
//
// x, residual: (row_count, row_size) read; residual may be null: 0
// out:         (row_count, row_size) written; may be x or residual
//
// row_size: at most 2^34.  A NaN that is dropped is gone.
absl::Status Dropout(Stream& stream, const DropoutMask& mask, const float* x,
                     const float* residual, int64_t row_count, int64_t row_size,
                     float* out);

}  // namespace lockstep::kernels

#endif  // KERNELS_DROPOUT_H_
