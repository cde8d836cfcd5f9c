#include "kernels/cpu/swiglu.h"

#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/swiglu.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

#if LS_SIMD_TARGET
HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::cpu {
namespace HWY_NAMESPACE {

HWY_INLINE FloatVector Logistic(FloatVector z) {
  const FloatTag d;
  const auto one = hn::Set(d, 1.0f);
  return hn::Div(one, hn::Add(one, Exp(hn::Neg(z))));
}

// out may be gate.
void SwiGluRow(const float* gate, const float* HWY_RESTRICT up, int64_t n,
               float* out) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t left = n - i;
    const auto z = LoadPart(gate + i, left);
    StorePart(hn::Mul(hn::Mul(z, Logistic(z)), LoadPart(up + i, left)), out + i,
              left);
  }
}

void SwiGluGradientRow(float* HWY_RESTRICT gate, float* HWY_RESTRICT up,
                       const float* HWY_RESTRICT out_gradient, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t left = n - i;
    const auto z = LoadPart(gate + i, left);
    const auto u = LoadPart(up + i, left);
    const auto g = LoadPart(out_gradient + i, left);
    const auto s = Logistic(z);
    // silu'(z) = s + z s (1 - s)
    const auto slope = hn::MulAdd(z, hn::NegMulAdd(s, s, s), s);
    StorePart(hn::Mul(hn::Mul(g, u), slope), gate + i, left);
    StorePart(hn::Mul(g, hn::Mul(z, s)), up + i, left);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lockstep::kernels::cpu
HWY_AFTER_NAMESPACE();
#endif  // LS_SIMD_TARGET

#if HWY_ONCE
namespace lockstep::kernels::cpu {
namespace {

constexpr int64_t kRowsAtOnce = 16;

}  // namespace

void SwiGluForward(ThreadPool& pool, const float* x, int64_t row_count,
                   int64_t width, float* out, int64_t out_stride) {
  const auto swiglu = LS_DISPATCH(SwiGluRow);
  ParallelForBlocks(
      pool, row_count, kRowsAtOnce, [&](int64_t begin, int64_t end, int) {
        for (int64_t row = begin; row < end; ++row) {
          const float* const gate = x + row * 2 * width;
          swiglu(gate, gate + width, width, out + row * out_stride);
        }
      });
}

void SwiGluBackward(ThreadPool& pool, float* x, const float* out_gradient,
                    int64_t row_count, int64_t width) {
  const auto gradient = LS_DISPATCH(SwiGluGradientRow);
  ParallelForBlocks(
      pool, row_count, kRowsAtOnce, [&](int64_t begin, int64_t end, int) {
        for (int64_t row = begin; row < end; ++row) {
          float* const gate = x + row * 2 * width;
          gradient(gate, gate + width, out_gradient + row * width, width);
        }
      });
}

}  // namespace lockstep::kernels::cpu
#endif  // HWY_ONCE
