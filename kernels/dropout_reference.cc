#include "kernels/dropout_reference.h"

#include <cmath>

#include "common/philox.h"

namespace lockstep::kernels {

double DropoutFactorReference(const DropoutMask& mask, int64_t row, int64_t i) {
  const auto sample = static_cast<uint64_t>(mask.first_sample + row);
  const auto seed = static_cast<uint64_t>(mask.seed);
  const PhiloxBlock block = Philox4x32(
      {static_cast<uint32_t>(i / 4), static_cast<uint32_t>(sample),
       static_cast<uint32_t>(sample >> 32), mask.site},
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return block[i % 4] < std::nearbyint(mask.rate * 0x1p32)
             ? 0
             : 1 / (1 - mask.rate);
}

}  // namespace lockstep::kernels
