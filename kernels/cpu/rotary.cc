#include "kernels/cpu/rotary.h"

#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rotary.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

#if LS_SIMD_TARGET
HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::cpu {
namespace HWY_NAMESPACE {

// One head of one token; `sign` is 1 or -1.
void RotateHead(float* HWY_RESTRICT first, float* HWY_RESTRICT second,
                const float* HWY_RESTRICT cosine,
                const float* HWY_RESTRICT sine, float sign, int64_t half) {
  const auto v_sign = hn::Set(FloatTag(), sign);
  for (int64_t i = 0; i < half; i += kLanes) {
    const int64_t left = half - i;
    const auto a = LoadPart(first + i, left);
    const auto b = LoadPart(second + i, left);
    const auto c = LoadPart(cosine + i, left);
    const auto s = hn::Mul(v_sign, LoadPart(sine + i, left));
    StorePart(hn::NegMulAdd(b, s, hn::Mul(a, c)), first + i, left);
    StorePart(hn::MulAdd(a, s, hn::Mul(b, c)), second + i, left);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lockstep::kernels::cpu
HWY_AFTER_NAMESPACE();
#endif  // LS_SIMD_TARGET

#if HWY_ONCE
namespace lockstep::kernels::cpu {

void Rotate(ThreadPool& pool, const RotaryShape& shape,
            RotaryDirection direction, const float* cosine, const float* sine,
            float* x) {
  const auto rotate = LS_DISPATCH(RotateHead);
  const int64_t half = shape.head_width / 2;
  const float sign = direction == RotaryDirection::kForward ? 1 : -1;
  ParallelForBlocks(
      pool, shape.row_count * shape.sequence_length, 16,
      [&](int64_t begin, int64_t end, int) {
        for (int64_t token = begin; token < end; ++token) {
          const int64_t at = token % shape.sequence_length * half;
          float* const heads = x + token * shape.stride;
          for (int64_t head = 0; head < shape.head_count; ++head) {
            float* const first = heads + head * shape.head_width;
            rotate(first, first + half, cosine + at, sine + at, sign, half);
          }
        }
      });
}

}  // namespace lockstep::kernels::cpu
#endif  // HWY_ONCE
