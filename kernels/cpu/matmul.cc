#include "kernels/cpu/matmul.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/bfloat16_gemm.h"
#include "kernels/cpu/first_error.h"
#include "kernels/cpu/sgemm.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/matmul.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

#if LS_SIMD_TARGET
HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::cpu {
namespace HWY_NAMESPACE {

// c[i] = residual[i] + bias[i], either of them null; c may be the residual.
void StartRow(float* c, const float* residual, const float* HWY_RESTRICT bias,
              int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) {
    auto v = hn::Zero(FloatTag());
    if (residual != nullptr) v = LoadPart(residual + i, n - i);
    if (bias != nullptr) v = hn::Add(v, LoadPart(bias + i, n - i));
    StorePart(v, c + i, n - i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lockstep::kernels::cpu
HWY_AFTER_NAMESPACE();
#endif  // LS_SIMD_TARGET

#if HWY_ONCE
namespace lockstep::kernels::cpu {
namespace {

// How C's longer side is cut for the threads to share: into parts of `part`
// elements, and what is left over goes to the last one, since short ones are
// computed by other, slower ways of oneDNN.  A function of the side alone,
// never of the number of threads.
struct Cut {
  explicit Cut(int64_t side)
      // Few enough elements for a handful of threads, many enough for oneDNN
      // not to spend its time on packing the other input again.
      : part(std::clamp<int64_t>((side / 8 + 15) / 16 * 16, 64, 1024)),
        count(std::max<int64_t>(side / part, 1)) {}
  int64_t part;
  int64_t count;
};

absl::Status Gemm(int64_t m, int64_t n, int64_t k, const MatMulInput& a,
                  const MatMulInput& b, float beta, float* c,
                  int64_t c_stride) {
  return Sgemm(m, n, k, 1, a, b, beta, c, c_stride);
}

absl::Status Gemm(int64_t m, int64_t n, int64_t k, const Bfloat16MatMulInput& a,
                  const Bfloat16MatMulInput& b, float beta, float* c,
                  int64_t c_stride) {
  return Bfloat16Gemm(m, n, k, a, b, beta, c, c_stride);
}

template <typename T>
absl::Status Run(ThreadPool& pool, int64_t m, int64_t n, int64_t k,
                 const MatMulOperand<T>& a, const MatMulOperand<T>& b, float* c,
                 int64_t c_stride, const MatMulOptions& options) {
  const auto start_row = LS_DISPATCH(StartRow);
  const bool by_rows = m >= n;
  const int64_t side = by_rows ? m : n;
  const Cut cut(side);
  const bool start = options.residual != nullptr || options.bias != nullptr;
  FirstError error;
  pool.ParallelFor(cut.count, [&](int64_t i, int) {
    const int64_t begin = i * cut.part;
    const int64_t end = i + 1 == cut.count ? side : begin + cut.part;
    const int64_t row = by_rows ? begin : 0;
    const int64_t column = by_rows ? 0 : begin;
    const int64_t row_count = by_rows ? end - begin : m;
    const int64_t column_count = by_rows ? n : end - begin;
    const int64_t at = row * c_stride + column;
    if (start || (k == 0 && !options.accumulate)) {
      for (int64_t r = 0; r < row_count; ++r) {
        const int64_t row_at = at + r * c_stride;
        start_row(
            c + row_at,
            options.residual == nullptr ? nullptr : options.residual + row_at,
            options.bias == nullptr ? nullptr : options.bias + column,
            column_count);
      }
    }
    if (k == 0) return;
    MatMulOperand<T> a_part = a;
    MatMulOperand<T> b_part = b;
    a_part.data += a.transposed ? row : row * a.stride;
    b_part.data += b.transposed ? column * b.stride : column;
    error.Update(Gemm(row_count, column_count, k, a_part, b_part,
                      start || options.accumulate ? 1 : 0, c + at, c_stride));
  });
  return error.Take();
}

}  // namespace

absl::Status MatMul(ThreadPool& pool, int64_t m, int64_t n, int64_t k,
                    const MatMulInput& a, const MatMulInput& b, float* c,
                    int64_t c_stride, const MatMulOptions& options) {
  return Run(pool, m, n, k, a, b, c, c_stride, options);
}

absl::Status MatMul(ThreadPool& pool, int64_t m, int64_t n, int64_t k,
                    const Bfloat16MatMulInput& a, const Bfloat16MatMulInput& b,
                    float* c, int64_t c_stride, const MatMulOptions& options) {
  return Run(pool, m, n, k, a, b, c, c_stride, options);
}

}  // namespace lockstep::kernels::cpu
#endif  // HWY_ONCE
