// Element types of tensors in files, as safetensors names them.
#ifndef WORKER_CHECKPOINT_DTYPE_H_
#define WORKER_CHECKPOINT_DTYPE_H_

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace lockstep {

// In the order of the format's own writer, which puts tensors of later types
// first: then each starts at a multiple of its element's size.
enum class Dtype {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBf16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

// "F32".
absl::string_view DtypeName(Dtype dtype);

// Nothing when there is no such type.
std::optional<Dtype> DtypeFromName(absl::string_view name);

// Bits of an element: 4 to 64; not always a multiple of 8.
int DtypeBits(Dtype dtype);

// The value of an IEEE half, and of a bfloat16, given as their bits.  Exact;
// NaNs stay NaNs with their payload.
float FloatFromHalf(uint16_t bits);
float FloatFromBfloat16(uint16_t bits);

}  // namespace lockstep

#endif  // WORKER_CHECKPOINT_DTYPE_H_
