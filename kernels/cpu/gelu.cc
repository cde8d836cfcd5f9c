#include "kernels/cpu/gelu.h"

#include <cstring>

#include "kernels/cpu/row_sums.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gelu.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

#if LS_SIMD_TARGET
HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::cpu {
namespace HWY_NAMESPACE {

// With (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)), one exponential and no
// cancellation: -2 u = z (kLinear + kCubic z^2).
constexpr float kLinear = -1.5957691216057308f;  // -2 sqrt(2 / pi)
constexpr float kCubic = -1.5957691216057308f * 0.044715f;

HWY_INLINE FloatVector LogisticOfTwoU(FloatVector z, FloatVector square) {
  const FloatTag d;
  const auto one = hn::Set(d, 1.0f);
  const auto slope =
      hn::MulAdd(hn::Set(d, kCubic), square, hn::Set(d, kLinear));
  return hn::Div(one, hn::Add(one, Exp(hn::Mul(z, slope))));
}

void GeluRow(const float* x, const float* HWY_RESTRICT bias, int64_t n,
             float* out) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t left = n - i;
    const auto z = hn::Add(LoadPart(x + i, left), LoadPart(bias + i, left));
    StorePart(hn::Mul(z, LogisticOfTwoU(z, hn::Mul(z, z))), out + i, left);
  }
}

void GeluGradientRow(const float* HWY_RESTRICT x,
                     const float* HWY_RESTRICT bias, int64_t n,
                     float* HWY_RESTRICT gradient,
                     float* HWY_RESTRICT bias_sum) {
  const FloatTag d;
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t left = n - i;
    const auto z = hn::Add(LoadPart(x + i, left), LoadPart(bias + i, left));
    const auto square = hn::Mul(z, z);
    const auto s = LogisticOfTwoU(z, square);
    // d(2 u)/dz, negated.
    const auto slope =
        hn::MulAdd(hn::Set(d, 3 * kCubic), square, hn::Set(d, kLinear));
    // s + z s (1 - s) d(2 u)/dz
    const auto rest = hn::Mul(hn::Mul(z, hn::NegMulAdd(s, s, s)), slope);
    const auto g = hn::Mul(LoadPart(gradient + i, left), hn::Sub(s, rest));
    StorePart(g, gradient + i, left);
    StorePart(hn::Add(LoadPart(bias_sum + i, left), g), bias_sum + i, left);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lockstep::kernels::cpu
HWY_AFTER_NAMESPACE();
#endif  // LS_SIMD_TARGET

#if HWY_ONCE
namespace lockstep::kernels::cpu {

void BiasGeluForward(ThreadPool& pool, const float* x, const float* bias,
                     int64_t row_count, int64_t width, float* out) {
  const auto gelu = LS_DISPATCH(GeluRow);
  ParallelForBlocks(pool, row_count, 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      gelu(x + row * width, bias, width, out + row * width);
    }
  });
}

void BiasGeluBackward(ThreadPool& pool, const float* x, const float* bias,
                      int64_t row_count, int64_t width, float* gradient,
                      float* bias_gradient, float* workspace) {
  const auto gelu_gradient = LS_DISPATCH(GeluGradientRow);
  ParallelForBlocks(
      pool, row_count, kRowSumsBlock, [&](int64_t begin, int64_t end, int) {
        float* const sums = workspace + begin / kRowSumsBlock * width;
        std::memset(sums, 0, width * sizeof(float));
        for (int64_t row = begin; row < end; ++row) {
          gelu_gradient(x + row * width, bias, width, gradient + row * width,
                        sums);
        }
      });
  SumRows(pool, workspace, RowSumsBlockCount(row_count), width, width,
          bias_gradient);
}

}  // namespace lockstep::kernels::cpu
#endif  // HWY_ONCE
