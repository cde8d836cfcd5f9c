#include "kernels/cpu/exact_sum.h"

#include <atomic>
#include <cmath>
#include <cstring>

#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/exact_sum.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

// Shared by all targets.
#ifndef KERNELS_CPU_EXACT_SUM_CC_ONCE_
#define KERNELS_CPU_EXACT_SUM_CC_ONCE_
namespace lockstep::kernels::cpu {

// What one block of squares adds up to: sums of the low and high 32 bits of
// 64-bit products, which stand at 2^0 and 2^32 (of low x low), 2^32 and 2^64
// (of 2 x low x high) and 2^64 and 2^96 (of high x high).
struct SquareSums {
  uint64_t low[2] = {};
  uint64_t mixed[2] = {};
  uint64_t high[2] = {};
};

// float32 constants of a step; the gradient's are double.
struct AdamWConstants {
  double unit, token_count, clip_scale;
  float beta1, beta1_rest, beta2, beta2_rest;
  float bias_correction1, bias_correction2;
  float epsilon, learning_rate, weight_decay;
};

}  // namespace lockstep::kernels::cpu
#endif  // KERNELS_CPU_EXACT_SUM_CC_ONCE_

#if LS_SIMD_TARGET
HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Below 2^51 in magnitude, adding 1.5 x 2^52 to a double rounds it to an
// integer, ties to even, and leaves that integer in the low bits.
constexpr double kMagic = 6755399441055744.0;
constexpr double kMagicMax = 2251799813685248.0;

// Exact arithmetic all through, so that it gives what the vectors give.
inline bool AccumulateOne(float gradient, int64_t* sum, double scale,
                          int64_t limit) {
  const double scaled = static_cast<double>(gradient) * scale;
  const double magnitude = std::fabs(scaled);
  // Not finite, or past every limit.
  if (!(magnitude < 4611686018427387904.0)) return true;
  int64_t q;
  if (magnitude < kMagicMax) {
    const double shifted = scaled + kMagic;
    int64_t bits, magic_bits;
    std::memcpy(&bits, &shifted, sizeof(bits));
    std::memcpy(&magic_bits, &kMagic, sizeof(magic_bits));
    q = bits - magic_bits;
  } else {
    q = static_cast<int64_t>(scaled);  // An integer: 24 bits, shifted.
  }
  if ((q < 0 ? -q : q) >= limit) return true;
  *sum += q;
  return false;
}

// Returns whether an element overflowed.
bool AccumulateBlock(const float* HWY_RESTRICT gradient,
                     int64_t* HWY_RESTRICT sum, int64_t n, double scale,
                     int64_t limit) {
  const hn::ScalableTag<double> dd;
  const hn::RebindToSigned<decltype(dd)> di;
  const hn::Rebind<float, decltype(dd)> df;
  const int64_t lanes = hn::Lanes(dd);
  const auto v_scale = hn::Set(dd, scale);
  const auto v_magic = hn::Set(dd, kMagic);
  const auto v_magic_max = hn::Set(dd, kMagicMax);
  const auto v_limit = hn::Set(di, limit);
  auto v_overflow = hn::Zero(di);
  bool overflow = false;
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto scaled =
        hn::Mul(hn::PromoteTo(dd, hn::LoadU(df, gradient + i)), v_scale);
    // False for a NaN.
    if (HWY_UNLIKELY(!hn::AllTrue(dd, hn::Lt(hn::Abs(scaled), v_magic_max)))) {
      for (int64_t k = i; k < i + lanes; ++k) {
        overflow |= AccumulateOne(gradient[k], sum + k, scale, limit);
      }
      continue;
    }
    const auto q = hn::Sub(hn::BitCast(di, hn::Add(scaled, v_magic)),
                           hn::BitCast(di, v_magic));
    const auto fits = hn::Lt(hn::Abs(q), v_limit);
    v_overflow =
        hn::Or(v_overflow, hn::IfThenZeroElse(fits, hn::Set(di, int64_t{1})));
    hn::StoreU(hn::Add(hn::LoadU(di, sum + i), hn::IfThenElseZero(fits, q)), di,
               sum + i);
  }
  for (; i < n; ++i) {
    overflow |= AccumulateOne(gradient[i], sum + i, scale, limit);
  }
  return overflow || !hn::AllTrue(di, hn::Eq(v_overflow, hn::Zero(di)));
}

int64_t MaxBlock(const int64_t* HWY_RESTRICT sum, int64_t n) {
  const hn::ScalableTag<int64_t> d;
  const int64_t lanes = hn::Lanes(d);
  auto max = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    max = hn::Max(max, hn::Abs(hn::LoadU(d, sum + i)));
  }
  int64_t result = 0;
  HWY_ALIGN int64_t parts[HWY_MAX_BYTES / sizeof(int64_t)];
  hn::Store(max, d, parts);
  for (int64_t k = 0; k < lanes; ++k) {
    result = parts[k] > result ? parts[k] : result;
  }
  for (; i < n; ++i) {
    const int64_t magnitude = sum[i] < 0 ? -sum[i] : sum[i];
    result = magnitude > result ? magnitude : result;
  }
  return result;
}

// n: at most 2^31, so that the sums of 32-bit halves fit 64 bits.
SquareSums SquaresBlock(const int64_t* HWY_RESTRICT sum, int64_t n) {
  const hn::ScalableTag<int64_t> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::Repartition<uint32_t, decltype(d)> d32;
  const int64_t lanes = hn::Lanes(d);
  const auto low_mask = hn::Set(du, uint64_t{0xffffffff});
  using V = hn::Vec<decltype(du)>;
  V low[2] = {hn::Zero(du), hn::Zero(du)};
  V mixed[2] = {hn::Zero(du), hn::Zero(du)};
  V high[2] = {hn::Zero(du), hn::Zero(du)};
  SquareSums sums;

  // Chunks stay in the first-level cache between the test and the squares.
  constexpr int64_t kChunk = 1024;
  for (int64_t begin = 0; begin < n; begin += kChunk) {
    const int64_t end = begin + kChunk < n ? begin + kChunk : n;
    auto seen = hn::Zero(d);
    int64_t i = begin;
    for (; i + lanes <= end; i += lanes) {
      seen = hn::Or(seen, hn::Abs(hn::LoadU(d, sum + i)));
    }
    const bool small =
        hn::AllTrue(d, hn::Lt(seen, hn::Set(d, int64_t{1} << 31)));
    if (small) {
      for (i = begin; i + lanes <= end; i += lanes) {
        const auto x = hn::BitCast(d32, hn::Abs(hn::LoadU(d, sum + i)));
        const auto square = hn::MulEven(x, x);
        low[0] = hn::Add(low[0], hn::And(square, low_mask));
        low[1] = hn::Add(low[1], hn::ShiftRight<32>(square));
      }
    } else {
      for (i = begin; i + lanes <= end; i += lanes) {
        const auto x = hn::BitCast(du, hn::Abs(hn::LoadU(d, sum + i)));
        const auto l = hn::BitCast(d32, x);
        const auto h = hn::BitCast(d32, hn::ShiftRight<32>(x));
        const auto ll = hn::MulEven(l, l);
        // Below 2^63: h is below 2^30.
        const auto lh = hn::ShiftLeft<1>(hn::MulEven(l, h));
        const auto hh = hn::MulEven(h, h);
        low[0] = hn::Add(low[0], hn::And(ll, low_mask));
        low[1] = hn::Add(low[1], hn::ShiftRight<32>(ll));
        mixed[0] = hn::Add(mixed[0], hn::And(lh, low_mask));
        mixed[1] = hn::Add(mixed[1], hn::ShiftRight<32>(lh));
        high[0] = hn::Add(high[0], hn::And(hh, low_mask));
        high[1] = hn::Add(high[1], hn::ShiftRight<32>(hh));
      }
    }
    for (; i < end; ++i) {
      const auto x = static_cast<uint64_t>(sum[i] < 0 ? -sum[i] : sum[i]);
      const uint64_t l = x & 0xffffffffu;
      const uint64_t h = x >> 32;
      sums.low[0] += (l * l) & 0xffffffffu;
      sums.low[1] += (l * l) >> 32;
      sums.mixed[0] += (2 * l * h) & 0xffffffffu;
      sums.mixed[1] += (2 * l * h) >> 32;
      sums.high[0] += (h * h) & 0xffffffffu;
      sums.high[1] += (h * h) >> 32;
    }
  }

  HWY_ALIGN uint64_t parts[HWY_MAX_BYTES / sizeof(uint64_t)];
  const auto add = [&](V v, uint64_t* to) {
    hn::Store(v, du, parts);
    for (int64_t k = 0; k < lanes; ++k) *to += parts[k];
  };
  for (int k = 0; k < 2; ++k) {
    add(low[k], &sums.low[k]);
    add(mixed[k], &sums.mixed[k]);
    add(high[k], &sums.high[k]);
  }
  return sums;
}

// Every element by the same instructions, also those of the masked tail: a
// result must not depend on where its element stands.
void AdamWBlock(float* HWY_RESTRICT parameter, float* HWY_RESTRICT moment1,
                float* HWY_RESTRICT moment2, const int64_t* HWY_RESTRICT sum,
                int64_t n, const AdamWConstants& c) {
  const hn::ScalableTag<float> d;
  const hn::Half<decltype(d)> dh;
  const hn::Rebind<double, decltype(dh)> dd;
  const hn::RebindToSigned<decltype(dd)> di;
  const int64_t lanes = hn::Lanes(d);
  const int64_t half = hn::Lanes(dh);
  const auto unit = hn::Set(dd, c.unit);
  const auto token_count = hn::Set(dd, c.token_count);
  const auto clip_scale = hn::Set(dd, c.clip_scale);
  const auto beta1 = hn::Set(d, c.beta1);
  const auto beta1_rest = hn::Set(d, c.beta1_rest);
  const auto beta2 = hn::Set(d, c.beta2);
  const auto beta2_rest = hn::Set(d, c.beta2_rest);
  const auto bias_correction1 = hn::Set(d, c.bias_correction1);
  const auto bias_correction2 = hn::Set(d, c.bias_correction2);
  const auto epsilon = hn::Set(d, c.epsilon);
  const auto learning_rate = hn::Set(d, c.learning_rate);
  const auto weight_decay = hn::Set(d, c.weight_decay);

  for (int64_t i = 0; i < n; i += lanes) {
    const int64_t left = n - i;
    const auto mask = hn::FirstN(d, left < lanes ? left : lanes);
    const auto half_gradient = [&](int64_t from) HWY_ATTR {
      const int64_t count = left - from;
      const auto q = hn::MaskedLoad(
          hn::FirstN(di, count < 0 ? 0 : (count < half ? count : half)), di,
          sum + i + from);
      const auto g =
          hn::Mul(hn::Div(hn::Mul(hn::ConvertTo(dd, q), unit), token_count),
                  clip_scale);
      return hn::DemoteTo(dh, g);
    };
    const auto g = hn::Combine(d, half_gradient(half), half_gradient(0));
    const auto m = hn::MulAdd(beta1, hn::MaskedLoad(mask, d, moment1 + i),
                              hn::Mul(beta1_rest, g));
    const auto v = hn::MulAdd(beta2, hn::MaskedLoad(mask, d, moment2 + i),
                              hn::Mul(hn::Mul(beta2_rest, g), g));
    const auto p = hn::MaskedLoad(mask, d, parameter + i);
    const auto denominator =
        hn::Add(hn::Sqrt(hn::Div(v, bias_correction2)), epsilon);
    const auto step = hn::MulAdd(
        weight_decay, p, hn::Div(hn::Div(m, bias_correction1), denominator));
    hn::BlendedStore(m, mask, d, moment1 + i);
    hn::BlendedStore(v, mask, d, moment2 + i);
    hn::BlendedStore(hn::NegMulAdd(learning_rate, step, p), mask, d,
                     parameter + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lockstep::kernels::cpu
HWY_AFTER_NAMESPACE();
#endif  // LS_SIMD_TARGET

#if HWY_ONCE
namespace lockstep::kernels::cpu {
namespace {

constexpr int64_t kBlock = 1 << 15;

}  // namespace

void AccumulateExact(ThreadPool& pool, const float* gradient, int64_t* sum,
                     int64_t n, int exponent, int64_t limit,
                     int32_t* overflow) {
  const double scale = std::ldexp(1.0, -exponent);
  const auto block = LS_DISPATCH(AccumulateBlock);
  ParallelForBlocks(pool, n, kBlock, [&](int64_t begin, int64_t end, int) {
    if (block(gradient + begin, sum + begin, end - begin, scale, limit)) {
      std::atomic_ref<int32_t>(*overflow).store(1, std::memory_order_relaxed);
    }
  });
}

void MaxExact(ThreadPool& pool, const int64_t* sum, int64_t n, int64_t* max) {
  const auto block = LS_DISPATCH(MaxBlock);
  ParallelForBlocks(pool, n, kBlock, [&](int64_t begin, int64_t end, int) {
    const int64_t block_max = block(sum + begin, end - begin);
    std::atomic_ref<int64_t> shared(*max);
    int64_t old = shared.load();
    while (old < block_max && !shared.compare_exchange_weak(old, block_max)) {
    }
  });
}

void AddSquaresExact(ThreadPool& pool, const int64_t* sum, int64_t n,
                     int64_t* limbs) {
  const auto block = LS_DISPATCH(SquaresBlock);
  // Sums of 32-bit limbs: 2^32 blocks fit.
  std::atomic<uint64_t> totals[kSquareLimbCount] = {};
  ParallelForBlocks(pool, n, kBlock, [&](int64_t begin, int64_t end, int) {
    const SquareSums s = block(sum + begin, end - begin);
    const auto add = [&](int limb, uint64_t value) {
      totals[limb] += value & 0xffffffffu;
      totals[limb + 1] += value >> 32;
    };
    add(0, s.low[0]);
    add(1, s.low[1]);
    add(1, s.mixed[0]);
    add(2, s.mixed[1]);
    add(2, s.high[0]);
    add(3, s.high[1]);
  });
  uint64_t carry = 0;
  for (int k = 0; k < kSquareLimbCount; ++k) {
    const uint64_t total =
        static_cast<uint64_t>(limbs[k]) + totals[k].load() + carry;
    limbs[k] = static_cast<int64_t>(total & 0xffffffffu);
    carry = total >> 32;
  }
}

void AdamWExact(ThreadPool& pool, float* parameter, float* moment1,
                float* moment2, const int64_t* sum, int64_t n,
                const AdamWOptions& o) {
  const AdamWConstants constants{
      .unit = std::ldexp(1.0, o.exponent),
      .token_count = static_cast<double>(o.token_count),
      .clip_scale = o.clip_scale,
      .beta1 = static_cast<float>(o.beta1),
      .beta1_rest = static_cast<float>(1 - o.beta1),
      .beta2 = static_cast<float>(o.beta2),
      .beta2_rest = static_cast<float>(1 - o.beta2),
      .bias_correction1 = static_cast<float>(o.bias_correction1),
      .bias_correction2 = static_cast<float>(o.bias_correction2),
      .epsilon = static_cast<float>(o.epsilon),
      .learning_rate = static_cast<float>(o.learning_rate),
      .weight_decay = static_cast<float>(o.weight_decay),
  };
  const auto block = LS_DISPATCH(AdamWBlock);
  ParallelForBlocks(pool, n, kBlock, [&](int64_t begin, int64_t end, int) {
    block(parameter + begin, moment1 + begin, moment2 + begin, sum + begin,
          end - begin, constants);
  });
}

}  // namespace lockstep::kernels::cpu
#endif  // HWY_ONCE
