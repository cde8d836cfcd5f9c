// Vector helpers of the CPU kernels, compiled once per instruction set.
//
// Kernels work on vectors of float32 with a shorter one at the end.  LoadPart
// and StorePart make the short one an ordinary vector whose missing lanes are
// zero, so that the same instructions run on every element: a result does not
// depend on where in an array its element stands.

// Highway's toggle instead of an include guard: once per target.
#if defined(KERNELS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KERNELS_CPU_SIMD_INL_H_
#undef KERNELS_CPU_SIMD_INL_H_
#else
#define KERNELS_CPU_SIMD_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

#if LS_SIMD_TARGET
HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVector = hn::Vec<FloatTag>;

constexpr int64_t kLanes = HWY_LANES(float);

// The first `count` elements at `from`, then zeros; all lanes if count is
// kLanes or more.
HWY_INLINE FloatVector LoadPart(const float* from, int64_t count) {
  const FloatTag d;
  if (HWY_LIKELY(count >= kLanes)) return hn::LoadU(d, from);
  return hn::MaskedLoad(hn::FirstN(d, count), d, from);
}

// Only `count` elements at `to` are written, all lanes if it is kLanes or more.
HWY_INLINE void StorePart(FloatVector v, float* to, int64_t count) {
  const FloatTag d;
  if (HWY_LIKELY(count >= kLanes)) {
    hn::StoreU(v, d, to);
  } else {
    hn::BlendedStore(v, hn::FirstN(d, count), d, to);
  }
}

// `v` in the first `count` lanes, `rest` in the others.
HWY_INLINE FloatVector FirstLanes(FloatVector v, int64_t count,
                                  FloatVector rest) {
  const FloatTag d;
  if (HWY_LIKELY(count >= kLanes)) return v;
  return hn::IfThenElse(hn::FirstN(d, count), v, rest);
}

HWY_INLINE float SumOfLanes(FloatVector v) {
  return hn::GetLane(hn::SumOfLanes(FloatTag(), v));
}

// e^x within 2 units in the last place; 0 below -86.6, where float32 nears its
// end; e^88 for all above 88, so that a product with it stays finite; a NaN for
// a NaN.
//
// x = n ln 2 + r, |r| <= ln 2 / 2; e^r = 1 + r + r^2 q(r), with q fitted to
// minimise the relative error (3.8e-9, before rounding).
HWY_INLINE FloatVector Exp(FloatVector x) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  const auto low = hn::Set(d, -86.6f);
  const auto clamped = hn::Min(hn::Max(x, low), hn::Set(d, 88.0f));
  // Adding 1.5 x 2^23 rounds to an integer, which is then in the low bits.
  const auto magic = hn::Set(d, 12582912.0f);
  const auto shifted = hn::MulAdd(clamped, hn::Set(d, 1.442695041f), magic);
  const auto n = hn::Sub(shifted, magic);
  // ln 2 in two parts; n times the first is exact.
  auto r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), clamped);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  auto q = hn::Set(d, 0.001375115f);
  q = hn::MulAdd(q, r, hn::Set(d, 0.008368988f));
  q = hn::MulAdd(q, r, hn::Set(d, 0.041669544f));
  q = hn::MulAdd(q, r, hn::Set(d, 0.16666518f));
  q = hn::MulAdd(q, r, hn::Set(d, 0.49999988f));
  const auto p = hn::Add(hn::MulAdd(hn::Mul(r, r), q, r), hn::Set(d, 1.0f));
  // Times 2^n, n from -125 to 127, by adding to the exponent.
  const auto result = hn::BitCast(
      d,
      hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(hn::BitCast(di, shifted))));
  const auto flushed = hn::IfThenZeroElse(hn::Lt(x, low), result);
  return hn::IfThenElse(hn::IsNaN(x), x, flushed);
}

}  // namespace HWY_NAMESPACE
}  // namespace lockstep::kernels::cpu
HWY_AFTER_NAMESPACE();
#endif  // LS_SIMD_TARGET

#endif  // include guard
