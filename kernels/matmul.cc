#include "kernels/matmul.h"

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "kernels/arguments.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/matmul.h"

namespace lockstep::kernels {
namespace {

absl::Status CheckStride(const char* name, int64_t stride, int64_t row) {
  if (stride >= row && stride >= 1 && stride <= int64_t{1} << 40) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("MatMul: ", name, " stride=", stride,
                   ": expected the row's ", row, " elements or more"));
}

template <typename T>
absl::Status CheckAndRun(Stream& stream, int64_t m, int64_t n, int64_t k,
                         const MatMulOperand<T>& a, const MatMulOperand<T>& b,
                         float* c, int64_t c_stride,
                         const MatMulOptions& options) {
  RETURN_IF_ERROR(CheckSizes("MatMul", {{"m", m}, {"n", n}}));
  RETURN_IF_ERROR(CheckSizes("MatMul", {{"m", m}, {"k", k}}));
  RETURN_IF_ERROR(CheckSizes("MatMul", {{"k", k}, {"n", n}}));
  if (options.accumulate &&
      (options.residual != nullptr || options.bias != nullptr)) {
    return absl::InvalidArgumentError(
        "MatMul: accumulate together with a residual or a bias");
  }
  if (m == 0 || n == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckPointers("MatMul", {{"c", c}}));
  RETURN_IF_ERROR(CheckStride("c", c_stride, n));
  if (k > 0) {
    RETURN_IF_ERROR(CheckPointers("MatMul", {{"a", a.data}, {"b", b.data}}));
    RETURN_IF_ERROR(CheckStride("a", a.stride, a.transposed ? m : k));
    RETURN_IF_ERROR(CheckStride("b", b.stride, b.transposed ? k : n));
  }
  switch (stream.backend()) {
    case Backend::kCpu:
      return cpu::MatMul(cpu::PoolOf(stream), m, n, k, a, b, c, c_stride,
                         options);
  }
  return absl::InternalError("MatMul: unknown backend");
}

}  // namespace

absl::Status MatMul(Stream& stream, int64_t m, int64_t n, int64_t k,
                    const MatMulInput& a, const MatMulInput& b, float* c,
                    int64_t c_stride, const MatMulOptions& options) {
  return CheckAndRun(stream, m, n, k, a, b, c, c_stride, options);
}

absl::Status MatMul(Stream& stream, int64_t m, int64_t n, int64_t k,
                    const Bfloat16MatMulInput& a, const Bfloat16MatMulInput& b,
                    float* c, int64_t c_stride, const MatMulOptions& options) {
  if (!stream.device().has_bfloat16()) {
    return absl::UnimplementedError(
        absl::StrCat("MatMul: ", stream.device().model_name(), " (",
                     stream.device().numeric_class(),
                     ") has no bfloat16 products; they need AVX-512"));
  }
  return CheckAndRun(stream, m, n, k, a, b, c, c_stride, options);
}

}  // namespace lockstep::kernels
