#include "kernels/bfloat16_reference.h"

#include <bit>
#include <cmath>
#include <cstdint>

namespace lockstep::kernels {

Bfloat16 RoundToBfloat16Reference(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const auto upper = static_cast<uint16_t>(bits >> 16);
  if (std::isnan(x)) return {static_cast<uint16_t>(upper | 0x40)};
  if (std::isinf(x)) return {upper};
  // The neighbours towards zero and away from it; what would be the one above
  // the largest stands for infinity, at its distance.
  const Bfloat16 below{upper}, above{static_cast<uint16_t>(upper + 1)};
  const double far = std::isinf(above.value())
                         ? std::copysign(std::ldexp(1.0, 128), x)
                         : static_cast<double>(above.value());
  const double to_below = std::abs(double{x} - double{below.value()});
  const double to_above = std::abs(double{x} - far);
  if (to_below != to_above) return to_below < to_above ? below : above;
  return upper % 2 == 0 ? below : above;
}

}  // namespace lockstep::kernels
