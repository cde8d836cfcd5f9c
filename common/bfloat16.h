#ifndef COMMON_BFLOAT16_H_
#define COMMON_BFLOAT16_H_

#include <bit>
#include <cstdint>

namespace lockstep {

// A float32 whose significand has 8 bits, one of them implied, held as its
// upper half.
struct Bfloat16 {
  uint16_t bits = 0;

  float value() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
};

}  // namespace lockstep

#endif  // COMMON_BFLOAT16_H_
