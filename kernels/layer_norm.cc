#include "kernels/layer_norm.h"

#include "absl/strings/str_cat.h"
#include "common/kernel_workspace.h"
#include "common/status.h"
#include "kernels/arguments.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/layer_norm.h"

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

absl::Status LayerNormForward(Stream& stream, const float* x,
                              const float* weight, const float* bias,
                              int64_t row_count, int64_t width, double epsilon,
                              float* out, float* mean, float* rstd) {
  RETURN_IF_ERROR(CheckShape("LayerNormForward", row_count, width));
  if (row_count == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckPointers("LayerNormForward", {{"x", x},
                                                     {"weight", weight},
                                                     {"bias", bias},
                                                     {"out", out},
                                                     {"mean", mean},
                                                     {"rstd", rstd}}));
  switch (stream.backend()) {
    case Backend::kCpu:
      cpu::LayerNormForward(cpu::PoolOf(stream), x, weight, bias, row_count,
                            width, epsilon, out, mean, rstd);
      return absl::OkStatus();
  }
  return absl::InternalError("LayerNormForward: unknown backend");
}

int64_t LayerNormWorkspace(int64_t row_count, int64_t width) {
  return workspace::LayerNorm(row_count, width);
}

absl::Status LayerNormBackward(Stream& stream, const float* x,
                               const float* weight, const float* mean,
                               const float* rstd, const float* out_gradient,
                               int64_t row_count, int64_t width,
                               const LayerNormGradients& gradients,
                               float* workspace) {
  constexpr const char* kName = "LayerNormBackward";
  RETURN_IF_ERROR(CheckShape(kName, row_count, width));
  RETURN_IF_ERROR(CheckPointers(kName, {{"gradients.weight", gradients.weight},
                                        {"gradients.bias", gradients.bias}}));
  if (row_count > 0) {
    RETURN_IF_ERROR(CheckPointers(kName, {{"x", x},
                                          {"weight", weight},
                                          {"mean", mean},
                                          {"rstd", rstd},
                                          {"out_gradient", out_gradient},
                                          {"gradients.x", gradients.x},
                                          {"workspace", workspace}}));
  }
  switch (stream.backend()) {
    case Backend::kCpu:
      cpu::LayerNormBackward(cpu::PoolOf(stream), x, weight, mean, rstd,
                             out_gradient, row_count, width, gradients,
                             workspace);
      return absl::OkStatus();
  }
  return absl::InternalError("LayerNormBackward: unknown backend");
}

}  // namespace lockstep::kernels
