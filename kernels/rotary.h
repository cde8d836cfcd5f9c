// Rotary position embedding (Su et al., arXiv:2104.09864) in the half-split
// form of Hugging Face: element j of a head turns with element j + head_width
// / 2.
//
// All pointers are device memory of any float alignment; arrays do not overlap.
// The bits of a head depend on its values and its position alone.
// row_count = 0 is a no-op.
#ifndef KERNELS_ROTARY_H_
#define KERNELS_ROTARY_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/device.h"

namespace lockstep::kernels {

struct RotaryShape {
  int64_t row_count = 0;        // Sequences.
  int64_t sequence_length = 0;  // Positions 0, 1, ... of each.
  int64_t head_count = 0;       // That are turned, the first ones of a token.
  int64_t head_width = 0;       // Even.
  int64_t stride = 0;           // Elements from token to token.
};

enum class RotaryDirection {
  kForward,
  kBackward,  // Turns back: what Forward's gradient needs.
};

// Turns each pair (a, b) of a head at position t, of cosine c and sine s of the
// pair's angle, to (a c - b s, b c + a s); backward with -s.
//
// x:      (row_count, sequence_length, stride): of each token the first
//         head_count x head_width elements, turned in place
// cosine, sine: (at least sequence_length, head_width / 2) read
absl::Status Rotate(Stream& stream, const RotaryShape& shape,
                    RotaryDirection direction, const float* cosine,
                    const float* sine, float* x);

}  // namespace lockstep::kernels

#endif  // KERNELS_ROTARY_H_
