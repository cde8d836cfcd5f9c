#include "kernels/rotary_reference.h"

namespace lockstep::kernels {

std::vector<double> RotateReference(const RotaryShape& shape,
                                    RotaryDirection direction,
                                    const std::vector<double>& cosine,
                                    const std::vector<double>& sine,
                                    std::vector<double> x) {
  const int64_t half = shape.head_width / 2;
  for (int64_t row = 0; row < shape.row_count; ++row) {
    for (int64_t t = 0; t < shape.sequence_length; ++t) {
      for (int64_t head = 0; head < shape.head_count; ++head) {
        for (int64_t j = 0; j < half; ++j) {
          double& a = x[(row * shape.sequence_length + t) * shape.stride +
                        head * shape.head_width + j];
          double& b = *(&a + half);
          const double c = cosine[t * half + j];
          const double s = direction == RotaryDirection::kForward
                               ? sine[t * half + j]
                               : -sine[t * half + j];
          const double turned = a * c - b * s;
          b = b * c + a * s;
          a = turned;
        }
      }
    }
  }
  return x;
}

}  // namespace lockstep::kernels
