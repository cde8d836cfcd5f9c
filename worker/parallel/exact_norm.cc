#include "worker/parallel/exact_norm.h"

#include <array>
#include <bit>
#include <cmath>

#include "common/check.h"

namespace lockstep {

double SquaresToDouble(absl::Span<const int64_t> limbs, int exponent) {
  LS_CHECK(limbs.size() == kernels::kSquareLimbCount);
  // Carry, so that each limb is 32 bits again.
  std::array<uint64_t, kernels::kSquareLimbCount> digits;
  uint64_t carry = 0;
  for (int i = 0; i < kernels::kSquareLimbCount; ++i) {
    LS_CHECK(limbs[i] >= 0);
    const uint64_t total = static_cast<uint64_t>(limbs[i]) + carry;
    digits[i] = total & 0xffffffff;
    carry = total >> 32;
  }
  LS_CHECK(carry == 0);

  int top = kernels::kSquareLimbCount - 1;
  while (top > 0 && digits[top] == 0) --top;
  if (digits[top] == 0) return 0;

  // The 64 most significant bits; what is below them only breaks ties, which
  // the lowest bit can say for all of it: a double has 53.
  const auto digit = [&](int i) { return i >= 0 ? digits[i] : 0; };
  const int shift = std::countl_zero(digits[top]) - 32;
  uint64_t bits = (digit(top) << 32 | digit(top - 1)) << shift;
  uint64_t rest = digit(top - 2) << shift;
  bits |= rest >> 32;
  rest &= 0xffffffff;
  for (int i = top - 3; i >= 0; --i) rest |= digit(i);
  if (rest != 0) bits |= 1;
  return std::ldexp(static_cast<double>(bits),
                    32 * (top - 1) - shift + 2 * exponent);
}

}  // namespace lockstep
