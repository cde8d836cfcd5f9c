#include "kernels/rotary.h"

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "kernels/arguments.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/rotary.h"

namespace lockstep::kernels {

absl::Status Rotate(Stream& stream, const RotaryShape& s,
                    RotaryDirection direction, const float* cosine,
                    const float* sine, float* x) {
  constexpr const char* kName = "Rotate";
  RETURN_IF_ERROR(CheckSizes(kName, {{"row_count", s.row_count},
                                     {"sequence_length", s.sequence_length},
                                     {"stride", s.stride}}));
  RETURN_IF_ERROR(CheckSizes(
      kName, {{"head_count", s.head_count}, {"head_width", s.head_width}}));
  if (s.head_width % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        kName, ": head_width=", s.head_width, ": expected an even number"));
  }
  if (s.stride < s.head_count * s.head_width) {
    return absl::InvalidArgumentError(absl::StrCat(
        kName, ": stride=", s.stride, ": expected head_count x head_width=",
        s.head_count * s.head_width, " or more"));
  }
  if (s.row_count * s.sequence_length * s.head_count * s.head_width == 0) {
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(
      CheckPointers(kName, {{"cosine", cosine}, {"sine", sine}, {"x", x}}));
  switch (stream.backend()) {
    case Backend::kCpu:
      cpu::Rotate(cpu::PoolOf(stream), s, direction, cosine, sine, x);
      return absl::OkStatus();
  }
  return absl::InternalError("Rotate: unknown backend");
}

}  // namespace lockstep::kernels
