#include "kernels/cpu/cross_entropy.h"

#include <cstring>

#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cross_entropy.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/log-inl.h"
#include "kernels/cpu/simd-inl.h"

#if LS_SIMD_TARGET
HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::cpu {
namespace HWY_NAMESPACE {

// A NaN may get lost here; it comes back in the sum of exponentials.
HWY_INLINE float MaxOfRow(const float* x, int64_t n) {
  const FloatTag d;
  const auto lowest = hn::Set(d, hwy::LowestValue<float>());
  auto max = lowest;
  for (int64_t i = 0; i < n; i += kLanes) {
    max = hn::Max(max, FirstLanes(LoadPart(x + i, n - i), n - i, lowest));
  }
  return hn::GetLane(hn::MaxOfLanes(d, max));
}

// Returns the row's loss.  `probabilities` may be the logits, or null.
float LossOfRow(const float* logits, int32_t target, int64_t n,
                float* probabilities) {
  const FloatTag d;
  const float max = MaxOfRow(logits, n);
  const float target_logit = logits[target];
  const auto v_max = hn::Set(d, max);
  const auto zero = hn::Zero(d);
  auto sum = zero;
  for (int64_t i = 0; i < n; i += kLanes) {
    const auto e = FirstLanes(Exp(hn::Sub(LoadPart(logits + i, n - i), v_max)),
                              n - i, zero);
    sum = hn::Add(sum, e);
    if (probabilities != nullptr) StorePart(e, probabilities + i, n - i);
  }
  const float total = SumOfLanes(sum);
  if (probabilities != nullptr) {
    const auto scale = hn::Set(d, 1 / total);
    for (int64_t i = 0; i < n; i += kLanes) {
      StorePart(hn::Mul(LoadPart(probabilities + i, n - i), scale),
                probabilities + i, n - i);
    }
  }
  return static_cast<float>(LogOf(total) +
                            (static_cast<double>(max) - target_logit));
}

}  // namespace HWY_NAMESPACE
}  // namespace lockstep::kernels::cpu
HWY_AFTER_NAMESPACE();
#endif  // LS_SIMD_TARGET

#if HWY_ONCE
namespace lockstep::kernels::cpu {
namespace {

constexpr int64_t kRowBlock = 8;

}  // namespace

void CrossEntropyForward(ThreadPool& pool, const float* logits,
                         const int32_t* targets, int64_t row_count,
                         int64_t vocabulary, float* losses) {
  const auto loss = LS_DISPATCH(LossOfRow);
  ParallelForBlocks(
      pool, row_count, kRowBlock, [&](int64_t begin, int64_t end, int) {
        for (int64_t row = begin; row < end; ++row) {
          losses[row] = targets[row] < 0
                            ? 0
                            : loss(logits + row * vocabulary, targets[row],
                                   vocabulary, nullptr);
        }
      });
}

void CrossEntropyForwardBackward(ThreadPool& pool, float* logits,
                                 const int32_t* targets, int64_t row_count,
                                 int64_t vocabulary, float* losses) {
  const auto loss = LS_DISPATCH(LossOfRow);
  ParallelForBlocks(pool, row_count, kRowBlock,
                    [&](int64_t begin, int64_t end, int) {
                      for (int64_t row = begin; row < end; ++row) {
                        float* const x = logits + row * vocabulary;
                        if (targets[row] < 0) {
                          std::memset(x, 0, vocabulary * sizeof(float));
                          losses[row] = 0;
                          continue;
                        }
                        losses[row] = loss(x, targets[row], vocabulary, x);
                        x[targets[row]] -= 1;
                      }
                    });
}

}  // namespace lockstep::kernels::cpu
#endif  // HWY_ONCE
