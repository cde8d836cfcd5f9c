// The gated activation of Llama's feed-forward part (Shazeer,
// arXiv:2002.05202): the SiLU of one half of a row times the other.
//
// All pointers are device memory of any float alignment.  The bits of an
// element depend on that element's two inputs alone.  row_count = 0 is a no-op.
#ifndef KERNELS_SWIGLU_H_
#define KERNELS_SWIGLU_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/device.h"

namespace lockstep::kernels {

// out = silu(gate) up, where silu(z) = z / (1 + e^-z), gate the first `width`
// columns of x and up the others.
//
// x:   (row_count, 2 width) read
// out: (row_count, width) written, rows `out_stride` apart; may be x's gate,
//      that is x itself with out_stride = 2 width, else does not overlap it
absl::Status SwiGluForward(Stream& stream, const float* x, int64_t row_count,
                           int64_t width, float* out, int64_t out_stride);

// x becomes the gradient of x, given that of out.
//
// x:            (row_count, 2 width) as in Forward, overwritten
// out_gradient: (row_count, width) read; does not overlap x
absl::Status SwiGluBackward(Stream& stream, float* x, const float* out_gradient,
                            int64_t row_count, int64_t width);

}  // namespace lockstep::kernels

#endif  // KERNELS_SWIGLU_H_
