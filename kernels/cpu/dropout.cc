#include "kernels/cpu/dropout.h"

#include <algorithm>

#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/dropout.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/philox-inl.h"
#include "kernels/cpu/simd-inl.h"

#if LS_SIMD_TARGET
HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::cpu {
namespace HWY_NAMESPACE {

// Elements [begin, begin + n) of one sample, which x, residual and out point
// to; begin: a multiple of 4.
void DropoutPart(const DropoutMask& mask, int64_t sample, int64_t begin,
                 int64_t n, const float* x, const float* residual, float* out) {
  constexpr int64_t kAtOnce = 4 * kLanes;
  float factors[kAtOnce];
  const auto zero = hn::Zero(FloatTag());
  for (int64_t i = 0; i < n; i += kAtOnce) {
    const int64_t count = std::min(kAtOnce, n - i);
    DropoutFactors(mask, sample, begin + i, count, factors);
    for (int64_t k = 0; k < count; k += kLanes) {
      const int64_t left = count - k;
      const auto factor = LoadPart(factors + k, left);
      // What is dropped is gone, NaN or not.
      const auto kept = hn::IfThenElseZero(
          hn::Gt(factor, zero), hn::Mul(LoadPart(x + i + k, left), factor));
      StorePart(residual == nullptr
                    ? kept
                    : hn::Add(LoadPart(residual + i + k, left), kept),
                out + i + k, left);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lockstep::kernels::cpu
HWY_AFTER_NAMESPACE();
#endif  // LS_SIMD_TARGET

#if HWY_ONCE
namespace lockstep::kernels::cpu {

void Dropout(ThreadPool& pool, const DropoutMask& mask, const float* x,
             const float* residual, int64_t row_count, int64_t row_size,
             float* out) {
  const auto part = LS_DISPATCH(DropoutPart);
  constexpr int64_t kPart = 4096;
  const int64_t parts = (row_size + kPart - 1) / kPart;
  pool.ParallelFor(row_count * parts, [&](int64_t i, int) {
    const int64_t row = i / parts;
    const int64_t begin = i % parts * kPart;
    const int64_t at = row * row_size + begin;
    part(mask, mask.first_sample + row, begin,
         std::min(kPart, row_size - begin), x + at,
         residual == nullptr ? nullptr : residual + at, out + at);
  });
}

}  // namespace lockstep::kernels::cpu
#endif  // HWY_ONCE
