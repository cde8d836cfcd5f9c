#include "kernels/gelu.h"

#include "common/kernel_workspace.h"
#include "common/status.h"
#include "kernels/arguments.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/gelu.h"

namespace lockstep::kernels {

absl::Status BiasGeluForward(Stream& stream, const float* x, const float* bias,
                             int64_t row_count, int64_t width, float* out) {
  RETURN_IF_ERROR(CheckSizes("BiasGeluForward",
                             {{"row_count", row_count}, {"width", width}}));
  if (row_count == 0 || width == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckPointers("BiasGeluForward",
                                {{"x", x}, {"bias", bias}, {"out", out}}));
  switch (stream.backend()) {
    case Backend::kCpu:
      cpu::BiasGeluForward(cpu::PoolOf(stream), x, bias, row_count, width, out);
      return absl::OkStatus();
  }
  return absl::InternalError("BiasGeluForward: unknown backend");
}

int64_t BiasGeluWorkspace(int64_t row_count, int64_t width) {
  return workspace::BiasGelu(row_count, width);
}

absl::Status BiasGeluBackward(Stream& stream, const float* x, const float* bias,
                              int64_t row_count, int64_t width, float* gradient,
                              float* bias_gradient, float* workspace) {
  RETURN_IF_ERROR(CheckSizes("BiasGeluBackward",
                             {{"row_count", row_count}, {"width", width}}));
  if (width == 0) return absl::OkStatus();
  RETURN_IF_ERROR(
      CheckPointers("BiasGeluBackward", {{"bias_gradient", bias_gradient}}));
  if (row_count > 0) {
    RETURN_IF_ERROR(
        CheckPointers("BiasGeluBackward", {{"x", x},
                                           {"bias", bias},
                                           {"gradient", gradient},
                                           {"workspace", workspace}}));
  }
  switch (stream.backend()) {
    case Backend::kCpu:
      cpu::BiasGeluBackward(cpu::PoolOf(stream), x, bias, row_count, width,
                            gradient, bias_gradient, workspace);
      return absl::OkStatus();
  }
  return absl::InternalError("BiasGeluBackward: unknown backend");
}

}  // namespace lockstep::kernels
