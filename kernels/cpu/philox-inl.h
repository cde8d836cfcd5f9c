// Philox4x32-10 (common/philox.h) over vectors of blocks, and the factors of
// dropout made of it; compiled once per instruction set.

// Highway's toggle instead of an include guard: once per target.
#if defined(KERNELS_CPU_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KERNELS_CPU_PHILOX_INL_H_
#undef KERNELS_CPU_PHILOX_INL_H_
#else
#define KERNELS_CPU_PHILOX_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/dropout_mask.h"

#if LS_SIMD_TARGET
HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::cpu {
namespace HWY_NAMESPACE {

using WordTag = hn::RebindToUnsigned<FloatTag>;
using WordVector = hn::Vec<WordTag>;

// The upper and the lower halves of a x b.
HWY_INLINE void MulWide(WordVector a, WordVector b, WordVector* high,
                        WordVector* low) {
  const WordTag d;
  const hn::RepartitionToWide<WordTag> wide;
  const auto even = hn::MulEven(a, b);
  const auto odd =
      hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, a))),
                  hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, b))));
  *high = hn::OddEven(hn::BitCast(d, odd),
                      hn::BitCast(d, hn::ShiftRight<32>(even)));
  *low =
      hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
}

// words[w] = word w of block `block` of `mask` and `sample`, in each lane.
HWY_INLINE void PhiloxWords(const DropoutMask& mask, int64_t sample,
                            WordVector block, WordVector words[4]) {
  const WordTag d;
  auto c0 = block;
  auto c1 = hn::Set(d, static_cast<uint32_t>(sample));
  auto c2 =
      hn::Set(d, static_cast<uint32_t>(static_cast<uint64_t>(sample) >> 32));
  auto c3 = hn::Set(d, mask.site);
  const auto seed = static_cast<uint64_t>(mask.seed);
  auto k0 = static_cast<uint32_t>(seed);
  auto k1 = static_cast<uint32_t>(seed >> 32);
  const auto m0 = hn::Set(d, 0xD2511F53u);
  const auto m1 = hn::Set(d, 0xCD9E8D57u);
  for (int round = 0; round < 10; ++round) {
    WordVector high0, low0, high1, low1;
    MulWide(m0, c0, &high0, &low0);
    MulWide(m1, c2, &high1, &low1);
    c0 = hn::Xor(hn::Xor(high1, c1), hn::Set(d, k0));
    c1 = low1;
    c2 = hn::Xor(hn::Xor(high0, c3), hn::Set(d, k1));
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  words[0] = c0;
  words[1] = c1;
  words[2] = c2;
  words[3] = c3;
}

// words[4 k, 4 k + 4) = block first_block + k of `mask` and `sample`, k below
// kLanes.
HWY_INLINE void PhiloxBlocks(const DropoutMask& mask, int64_t sample,
                             uint32_t first_block, uint32_t* words) {
  const WordTag d;
  WordVector w[4];
  PhiloxWords(mask, sample, hn::Iota(d, first_block), w);
  hn::StoreInterleaved4(w[0], w[1], w[2], w[3], d, words);
}

// Words below this are dropped.
inline uint32_t DropoutThreshold(double rate) {
  return static_cast<uint32_t>(
      std::min(std::nearbyint(rate * 0x1p32), 0x1p32 - 1));
}

// What the elements of a sample are multiplied by.
struct DropoutRule {
  explicit DropoutRule(const DropoutMask& mask)
      : threshold(hn::Set(WordTag(), DropoutThreshold(mask.rate))),
        scale(hn::Set(FloatTag(), static_cast<float>(1 / (1 - mask.rate)))) {}

  // 1 / (1 - rate) where a word keeps its element, else 0.
  HWY_INLINE FloatVector FactorOf(WordVector word) const {
    const auto dropped = hn::RebindMask(FloatTag(), hn::Lt(word, threshold));
    return hn::IfThenZeroElse(dropped, scale);
  }

  WordVector threshold;
  FloatVector scale;
};

// factors[i] = 1 / (1 - rate) where element begin + i of the sample is kept,
// else 0; i below n.  begin: a multiple of 4.
HWY_INLINE void DropoutFactors(const DropoutMask& mask, int64_t sample,
                               int64_t begin, int64_t n, float* factors) {
  const WordTag d;
  const DropoutRule rule(mask);
  HWY_ALIGN uint32_t words[4 * kLanes];
  for (int64_t i = 0; i < n; i += 4 * kLanes) {
    PhiloxBlocks(mask, sample, static_cast<uint32_t>((begin + i) / 4), words);
    for (int64_t k = 0; k < 4 && i + k * kLanes < n; ++k) {
      StorePart(rule.FactorOf(hn::Load(d, words + k * kLanes)),
                factors + i + k * kLanes, n - i - k * kLanes);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lockstep::kernels::cpu
HWY_AFTER_NAMESPACE();
#endif  // LS_SIMD_TARGET

#endif  // include guard
