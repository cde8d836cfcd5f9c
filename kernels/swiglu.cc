#include "kernels/swiglu.h"

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "kernels/arguments.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/swiglu.h"

namespace lockstep::kernels {

absl::Status SwiGluForward(Stream& stream, const float* x, int64_t row_count,
                           int64_t width, float* out, int64_t out_stride) {
  constexpr const char* kName = "SwiGluForward";
  RETURN_IF_ERROR(
      CheckSizes(kName, {{"row_count", row_count}, {"width", width}}));
  RETURN_IF_ERROR(CheckSizes(
      kName, {{"row_count", row_count}, {"out_stride", out_stride}}));
  if (out_stride < width) {
    return absl::InvalidArgumentError(
        absl::StrCat(kName, ": out_stride=", out_stride,
                     ": expected width=", width, " or more"));
  }
  if (row_count == 0 || width == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckPointers(kName, {{"x", x}, {"out", out}}));
  switch (stream.backend()) {
    case Backend::kCpu:
      cpu::SwiGluForward(cpu::PoolOf(stream), x, row_count, width, out,
                         out_stride);
      return absl::OkStatus();
  }
  return absl::InternalError("SwiGluForward: unknown backend");
}

absl::Status SwiGluBackward(Stream& stream, float* x, const float* out_gradient,
                            int64_t row_count, int64_t width) {
  constexpr const char* kName = "SwiGluBackward";
  RETURN_IF_ERROR(
      CheckSizes(kName, {{"row_count", row_count}, {"width", width}}));
  if (row_count == 0 || width == 0) return absl::OkStatus();
  RETURN_IF_ERROR(
      CheckPointers(kName, {{"x", x}, {"out_gradient", out_gradient}}));
  switch (stream.backend()) {
    case Backend::kCpu:
      cpu::SwiGluBackward(cpu::PoolOf(stream), x, out_gradient, row_count,
                          width);
      return absl::OkStatus();
  }
  return absl::InternalError("SwiGluBackward: unknown backend");
}

}  // namespace lockstep::kernels
