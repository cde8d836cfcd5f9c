#include "kernels/rms_norm.h"

#include "absl/strings/str_cat.h"
#include "common/kernel_workspace.h"
#include "common/status.h"
#include "kernels/arguments.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/rms_norm.h"

namespace lockstep::kernels {
namespace {

absl::Status CheckShape(const char* kernel, int64_t row_count, int64_t width) {
  RETURN_IF_ERROR(
      CheckSizes(kernel, {{"row_count", row_count}, {"width", width}}));
  if (width == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(kernel, ": width=0: expected 1 or more"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RmsNormForward(Stream& stream, const float* x, const float* weight,
                            int64_t row_count, int64_t width, double epsilon,
                            float* out, float* rstd) {
  RETURN_IF_ERROR(CheckShape("RmsNormForward", row_count, width));
  if (row_count == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckPointers(
      "RmsNormForward",
      {{"x", x}, {"weight", weight}, {"out", out}, {"rstd", rstd}}));
  switch (stream.backend()) {
    case Backend::kCpu:
      cpu::RmsNormForward(cpu::PoolOf(stream), x, weight, row_count, width,
                          epsilon, out, rstd);
      return absl::OkStatus();
  }
  return absl::InternalError("RmsNormForward: unknown backend");
}

int64_t RmsNormWorkspace(int64_t row_count, int64_t width) {
  return workspace::RmsNorm(row_count, width);
}

absl::Status RmsNormBackward(Stream& stream, const float* x,
                             const float* weight, const float* rstd,
                             const float* out_gradient, int64_t row_count,
                             int64_t width, const RmsNormGradients& gradients,
                             float* workspace) {
  constexpr const char* kName = "RmsNormBackward";
  RETURN_IF_ERROR(CheckShape(kName, row_count, width));
  RETURN_IF_ERROR(
      CheckPointers(kName, {{"gradients.weight", gradients.weight}}));
  if (row_count > 0) {
    RETURN_IF_ERROR(CheckPointers(kName, {{"x", x},
                                          {"weight", weight},
                                          {"rstd", rstd},
                                          {"out_gradient", out_gradient},
                                          {"gradients.x", gradients.x},
                                          {"workspace", workspace}}));
  }
  switch (stream.backend()) {
    case Backend::kCpu:
      cpu::RmsNormBackward(cpu::PoolOf(stream), x, weight, rstd, out_gradient,
                           row_count, width, gradients, workspace);
      return absl::OkStatus();
  }
  return absl::InternalError("RmsNormBackward: unknown backend");
}

}  // namespace lockstep::kernels
