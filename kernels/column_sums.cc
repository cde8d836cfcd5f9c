#include "kernels/column_sums.h"

#include "common/kernel_workspace.h"
#include "common/status.h"
#include "kernels/arguments.h"
#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/device.h"

namespace lockstep::kernels {

int64_t ColumnSumsWorkspace(int64_t row_count, int64_t width) {
  return workspace::ColumnSums(row_count, width);
}

absl::Status ColumnSums(Stream& stream, const float* x, int64_t row_count,
                        int64_t width, float* out, float* workspace) {
  RETURN_IF_ERROR(
      CheckSizes("ColumnSums", {{"row_count", row_count}, {"width", width}}));
  if (width == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckPointers("ColumnSums", {{"out", out}}));
  if (row_count > 0) {
    RETURN_IF_ERROR(
        CheckPointers("ColumnSums", {{"x", x}, {"workspace", workspace}}));
  }
  switch (stream.backend()) {
    case Backend::kCpu:
      cpu::ColumnSums(cpu::PoolOf(stream), x, row_count, width, out, workspace);
      return absl::OkStatus();
  }
  return absl::InternalError("ColumnSums: unknown backend");
}

}  // namespace lockstep::kernels
