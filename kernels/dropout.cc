#include "kernels/dropout.h"

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "kernels/arguments.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/dropout.h"

namespace lockstep::kernels {

absl::Status Dropout(Stream& stream, const DropoutMask& mask, const float* x,
                     const float* residual, int64_t row_count, int64_t row_size,
                     float* out) {
  constexpr const char* kName = "Dropout";
  RETURN_IF_ERROR(
      CheckSizes(kName, {{"row_count", row_count}, {"row_size", row_size}}));
  if (!(mask.rate >= 0 && mask.rate < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat(kName, ": rate=", mask.rate, ": expected 0 to below 1"));
  }
  if (row_size > int64_t{1} << 34) {
    return absl::InvalidArgumentError(absl::StrCat(
        kName, ": row_size=", row_size, ": expected at most 2^34"));
  }
  if (row_count == 0 || row_size == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckPointers(kName, {{"x", x}, {"out", out}}));
  switch (stream.backend()) {
    case Backend::kCpu:
      cpu::Dropout(cpu::PoolOf(stream), mask, x, residual, row_count, row_size,
                   out);
      return absl::OkStatus();
  }
  return absl::InternalError("Dropout: unknown backend");
}

}  // namespace lockstep::kernels
