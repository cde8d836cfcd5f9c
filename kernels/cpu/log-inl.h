// The logarithm of the CPU kernels, compiled once per instruction set.

// Highway's toggle instead of an include guard: once per target.
#if defined(KERNELS_CPU_LOG_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KERNELS_CPU_LOG_INL_H_
#undef KERNELS_CPU_LOG_INL_H_
#else
#define KERNELS_CPU_LOG_INL_H_
#endif

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

#if LS_SIMD_TARGET
HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::cpu {
namespace HWY_NAMESPACE {

// ln x in double, of a positive, normal x; infinity and NaN are returned as
// they are.  Not the C library's: its version must not decide bits.
HWY_INLINE double LogOf(float x) {
  if (!(x < hwy::HighestValue<float>())) return x;
  const hwy::HWY_NAMESPACE::CappedTag<double, 1> d;
  return hwy::HWY_NAMESPACE::GetLane(
      hwy::HWY_NAMESPACE::Log(d, hwy::HWY_NAMESPACE::Set(d, x)));
}

}  // namespace HWY_NAMESPACE
}  // namespace lockstep::kernels::cpu
HWY_AFTER_NAMESPACE();
#endif  // LS_SIMD_TARGET

#endif  // include guard
