#include "kernels/bfloat16.h"

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "kernels/arguments.h"
#include "kernels/cpu/bfloat16.h"
#include "kernels/cpu/device.h"

namespace lockstep::kernels {

absl::Status RoundToBfloat16(Stream& stream, const float* x, int64_t stride,
                             int64_t row_count, int64_t width, Bfloat16* out) {
  RETURN_IF_ERROR(CheckSizes("RoundToBfloat16",
                             {{"row_count", row_count}, {"width", width}}));
  if (row_count == 0 || width == 0) return absl::OkStatus();
  if (stride < width) {
    return absl::InvalidArgumentError(
        absl::StrCat("RoundToBfloat16: stride=", stride,
                     ": expected the row's ", width, " elements or more"));
  }
  RETURN_IF_ERROR(CheckPointers("RoundToBfloat16", {{"x", x}, {"out", out}}));
  switch (stream.backend()) {
    case Backend::kCpu:
      cpu::RoundToBfloat16(cpu::PoolOf(stream), x, stride, row_count, width,
                           out);
      return absl::OkStatus();
  }
  return absl::InternalError("RoundToBfloat16: unknown backend");
}

}  // namespace lockstep::kernels
