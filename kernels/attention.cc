#include "kernels/attention.h"

#include "absl/strings/str_cat.h"
#include "common/kernel_workspace.h"
#include "common/status.h"
#include "kernels/arguments.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/device.h"

namespace lockstep::kernels {
namespace {

absl::Status CheckShape(const char* kernel, const AttentionShape& s,
                        const DropoutMask* dropout) {
  if (dropout != nullptr) {
    if (!(dropout->rate >= 0 && dropout->rate < 1)) {
      return absl::InvalidArgumentError(absl::StrCat(
          kernel, ": rate=", dropout->rate, ": expected 0 to below 1"));
    }
    // Its elements are counted in blocks of 4 by 32 bits.
    RETURN_IF_ERROR(
        CheckSizes(kernel, {{"64 x head_count", 64 * s.head_count},
                            {"sequence_length", s.sequence_length},
                            {"sequence_length", s.sequence_length}}));
  }
  RETURN_IF_ERROR(CheckSizes(kernel, {{"row_count", s.row_count},
                                      {"sequence_length", s.sequence_length},
                                      {"head_count", s.head_count},
                                      {"head_width", s.head_width}}));
  if (s.head_count > 0 && (s.key_value_head_count < 1 ||
                           s.head_count % s.key_value_head_count != 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(kernel, ": key_value_head_count=", s.key_value_head_count,
                     ": expected a divisor of head_count=", s.head_count));
  }
  return absl::OkStatus();
}

bool IsEmpty(const AttentionShape& s) {
  return s.row_count * s.sequence_length * s.width() == 0;
}

}  // namespace

int64_t AttentionWorkspace(Device& device, const AttentionShape& shape) {
  switch (device.backend()) {
    case Backend::kCpu:
      return workspace::Attention(shape.sequence_length, shape.head_width)
                 .count() *
             device.thread_count();
  }
  return 0;
}

absl::Status AttentionForward(Stream& stream, const AttentionShape& shape,
                              const float* qkv, float* out, float* log_sum_exp,
                              float* workspace, const DropoutMask* dropout) {
  RETURN_IF_ERROR(CheckShape("AttentionForward", shape, dropout));
  if (IsEmpty(shape)) return absl::OkStatus();
  RETURN_IF_ERROR(
      CheckPointers("AttentionForward", {{"qkv", qkv},
                                         {"out", out},
                                         {"log_sum_exp", log_sum_exp},
                                         {"workspace", workspace}}));
  switch (stream.backend()) {
    case Backend::kCpu:
      return cpu::AttentionForward(cpu::PoolOf(stream), shape, qkv, out,
                                   log_sum_exp, workspace, dropout);
  }
  return absl::InternalError("AttentionForward: unknown backend");
}

absl::Status AttentionBackward(Stream& stream, const AttentionShape& shape,
                               const float* qkv, const float* out,
                               const float* log_sum_exp,
                               const float* out_gradient, float* qkv_gradient,
                               float* workspace, const DropoutMask* dropout) {
  RETURN_IF_ERROR(CheckShape("AttentionBackward", shape, dropout));
  if (IsEmpty(shape)) return absl::OkStatus();
  RETURN_IF_ERROR(
      CheckPointers("AttentionBackward", {{"qkv", qkv},
                                          {"out", out},
                                          {"log_sum_exp", log_sum_exp},
                                          {"out_gradient", out_gradient},
                                          {"qkv_gradient", qkv_gradient},
                                          {"workspace", workspace}}));
  switch (stream.backend()) {
    case Backend::kCpu:
      return cpu::AttentionBackward(cpu::PoolOf(stream), shape, qkv, out,
                                    log_sum_exp, out_gradient, qkv_gradient,
                                    workspace, dropout);
  }
  return absl::InternalError("AttentionBackward: unknown backend");
}

}  // namespace lockstep::kernels
