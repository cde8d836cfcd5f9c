#include "kernels/cpu/bfloat16.h"

#include <algorithm>

#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/bfloat16.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

#if LS_SIMD_TARGET
HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::cpu {
namespace HWY_NAMESPACE {

void RoundRow(const float* HWY_RESTRICT x, int64_t n,
              Bfloat16* HWY_RESTRICT out) {
  const FloatTag d;
  const hn::RebindToUnsigned<FloatTag> du;
  const hn::RebindToSigned<FloatTag> di;
  const hn::Rebind<uint16_t, FloatTag> d16;
  auto* const to = reinterpret_cast<uint16_t*>(out);
  for (int64_t i = 0; i < n; i += kLanes) {
    const auto v = LoadPart(x + i, n - i);
    const auto bits = hn::BitCast(du, v);
    // Half of the last place kept, less one if that is even: a carry into it is
    // the rounding.
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto rounded =
        hn::Add(bits, hn::Add(odd, hn::Set(du, uint32_t{0x7fff})));
    // A NaN could round to infinity; a bit that stays makes it quiet.
    const auto quiet = hn::Or(bits, hn::Set(du, uint32_t{0x400000}));
    const auto chosen =
        hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), quiet, rounded);
    const auto half =
        hn::DemoteTo(d16, hn::BitCast(di, hn::ShiftRight<16>(chosen)));
    if (HWY_LIKELY(n - i >= kLanes)) {
      hn::StoreU(half, d16, to + i);
    } else {
      hn::BlendedStore(half, hn::FirstN(d16, n - i), d16, to + i);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lockstep::kernels::cpu
HWY_AFTER_NAMESPACE();
#endif  // LS_SIMD_TARGET

#if HWY_ONCE
namespace lockstep::kernels::cpu {
namespace {

constexpr int64_t kBlock = int64_t{1} << 15;

}  // namespace

void RoundToBfloat16(ThreadPool& pool, const float* x, int64_t stride,
                     int64_t row_count, int64_t width, Bfloat16* out) {
  const auto round = LS_DISPATCH(RoundRow);
  if (stride == width) {
    ParallelForBlocks(pool, row_count * width, kBlock,
                      [&](int64_t begin, int64_t end, int) {
                        round(x + begin, end - begin, out + begin);
                      });
    return;
  }
  const int64_t rows_at_once = std::max<int64_t>(kBlock / width, 1);
  ParallelForBlocks(pool, row_count, rows_at_once,
                    [&](int64_t begin, int64_t end, int) {
                      for (int64_t row = begin; row < end; ++row) {
                        round(x + row * stride, width, out + row * width);
                      }
                    });
}

}  // namespace lockstep::kernels::cpu
#endif  // HWY_ONCE
