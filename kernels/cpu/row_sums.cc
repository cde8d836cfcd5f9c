#include "kernels/cpu/row_sums.h"

#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/row_sums.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

#if LS_SIMD_TARGET
HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::cpu {
namespace HWY_NAMESPACE {

void SumRowsBlock(const float* HWY_RESTRICT rows, int64_t row_count,
                  int64_t stride, int64_t width, float* HWY_RESTRICT out) {
  for (int64_t i = 0; i < width; i += kLanes) {
    auto sum = hn::Zero(FloatTag());
    for (int64_t r = 0; r < row_count; ++r) {
      sum = hn::Add(sum, LoadPart(rows + r * stride + i, width - i));
    }
    StorePart(sum, out + i, width - i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lockstep::kernels::cpu
HWY_AFTER_NAMESPACE();
#endif  // LS_SIMD_TARGET

#if HWY_ONCE
namespace lockstep::kernels::cpu {

void SumRows(ThreadPool& pool, const float* rows, int64_t row_count,
             int64_t stride, int64_t width, float* out) {
  const auto sum = LS_DISPATCH(SumRowsBlock);
  ParallelForBlocks(pool, width, 1024, [&](int64_t begin, int64_t end, int) {
    sum(rows + begin, row_count, stride, end - begin, out + begin);
  });
}

}  // namespace lockstep::kernels::cpu
#endif  // HWY_ONCE
