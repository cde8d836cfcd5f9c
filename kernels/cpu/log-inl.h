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

// ln x of a vector of doubles that were float32: positive, normal ones;
// infinity and NaN are returned as they are.  Not the C library's: its version
// must not decide bits.
template <class D>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> LogOf(D d, hwy::HWY_NAMESPACE::Vec<D> x) {
  namespace hn = hwy::HWY_NAMESPACE;
  const auto highest =
      hn::Set(d, static_cast<double>(hwy::HighestValue<float>()));
  return hn::IfThenElse(hn::Lt(x, highest), hn::Log(d, x), x);
}

// Of one number.
HWY_INLINE double LogOf(float x) {
  const hwy::HWY_NAMESPACE::CappedTag<double, 1> d;
  return hwy::HWY_NAMESPACE::GetLane(
      LogOf(d, hwy::HWY_NAMESPACE::Set(d, static_cast<double>(x))));
}

}  // namespace HWY_NAMESPACE
}  // namespace lockstep::kernels::cpu
HWY_AFTER_NAMESPACE();
#endif  // LS_SIMD_TARGET

#endif  // include guard
