// Rounding to bfloat16.
#ifndef KERNELS_BFLOAT16_H_
#define KERNELS_BFLOAT16_H_

#include <cstdint>

#include "absl/status/status.h"
#include "common/bfloat16.h"
#include "kernels/device.h"

namespace lockstep::kernels {

using lockstep::Bfloat16;

// out = x, each element rounded to the nearest, and of two as near to the even
// one: a relative error of at most 2^-9.  Above the largest it is infinity; a
// NaN stays one.
//
// x:   (row_count, width) read, rows `stride` elements apart
// out: (row_count, width) written, without gaps
//
// Device memory of any alignment of its elements; x and out do not overlap.
//
// Errors:
//   InvalidArgument: a size is negative or too large, the stride is shorter
//     than a row, or a pointer is null.
absl::Status RoundToBfloat16(Stream& stream, const float* x, int64_t stride,
                             int64_t row_count, int64_t width, Bfloat16* out);

}  // namespace lockstep::kernels

#endif  // KERNELS_BFLOAT16_H_
