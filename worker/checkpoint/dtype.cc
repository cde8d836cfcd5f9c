#include "worker/checkpoint/dtype.h"

#include <bit>
#include <iterator>

namespace lockstep {
namespace {

struct Row {
  absl::string_view name;
  int bits;
};

// In the order of the enum.
constexpr Row kRows[] = {
    {"BOOL", 8},    {"F4", 4},          {"F6_E2M3", 6},     {"F6_E3M2", 6},
    {"U8", 8},      {"I8", 8},          {"F8_E5M2", 8},     {"F8_E4M3", 8},
    {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},        {"BF16", 16},       {"I32", 32},
    {"U32", 32},    {"F32", 32},        {"C64", 64},        {"F64", 64},
    {"I64", 64},    {"U64", 64},
};
static_assert(std::size(kRows) == static_cast<size_t>(Dtype::kU64) + 1);

}  // namespace

absl::string_view DtypeName(Dtype dtype) {
  return kRows[static_cast<int>(dtype)].name;
}

std::optional<Dtype> DtypeFromName(absl::string_view name) {
  for (size_t i = 0; i < std::size(kRows); ++i) {
    if (kRows[i].name == name) return static_cast<Dtype>(i);
  }
  return std::nullopt;
}

int DtypeBits(Dtype dtype) { return kRows[static_cast<int>(dtype)].bits; }

float FloatFromHalf(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t exponent = (bits >> 10) & 0x1f;
  const uint32_t mantissa = bits & 0x3ff;
  if (exponent == 0) {  // Zero and subnormals: mantissa x 2^-24.
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  const uint32_t wide = exponent == 0x1f ? 0xff : exponent + (127 - 15);
  return std::bit_cast<float>(sign | wide << 23 | mantissa << 13);
}

float FloatFromBfloat16(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

}  // namespace lockstep
