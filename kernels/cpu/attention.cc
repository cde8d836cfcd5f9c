#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cmath>

#include "common/status.h"
#include "kernels/cpu/first_error.h"
#include "kernels/cpu/sgemm.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/log-inl.h"
#include "kernels/cpu/philox-inl.h"
#include "kernels/cpu/simd-inl.h"

#if LS_SIMD_TARGET
HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::cpu {
namespace HWY_NAMESPACE {

// scores[0, count) become exp(score - max), scores[count, width) zero.  Returns
// the sum of the exponentials and sets the log-sum-exp.
//
// A NaN may get lost in the maximum; it comes back in the sum.
float SoftmaxRow(float* HWY_RESTRICT scores, int64_t count, int64_t width,
                 float* log_sum_exp) {
  const FloatTag d;
  const auto zero = hn::Zero(d);
  const auto lowest = hn::Set(d, hwy::LowestValue<float>());
  auto max = lowest;
  for (int64_t i = 0; i < count; i += kLanes) {
    max = hn::Max(
        max, FirstLanes(LoadPart(scores + i, count - i), count - i, lowest));
  }
  const auto v_max = hn::MaxOfLanes(d, max);
  auto sum = zero;
  for (int64_t i = 0; i < width; i += kLanes) {
    if (i >= count) {
      StorePart(zero, scores + i, width - i);
      continue;
    }
    const auto e = FirstLanes(
        Exp(hn::Sub(LoadPart(scores + i, width - i), v_max)), count - i, zero);
    sum = hn::Add(sum, e);
    StorePart(e, scores + i, width - i);
  }
  const float total = SumOfLanes(sum);
  *log_sum_exp = static_cast<float>(LogOf(total) + hn::GetLane(v_max));
  return total;
}

void ScaleRow(float* x, float scale, int64_t n) {
  const auto v_scale = hn::Set(FloatTag(), scale);
  for (int64_t i = 0; i < n; i += kLanes) {
    StorePart(hn::Mul(LoadPart(x + i, n - i), v_scale), x + i, n - i);
  }
}

void DropoutFactorsOf(const DropoutMask& mask, int64_t sample, int64_t begin,
                      int64_t n, float* factors) {
  DropoutFactors(mask, sample, begin, n, factors);
}

// x[i] *= factors[i], and 0 where the factor is 0.
void DropRow(float* HWY_RESTRICT x, const float* HWY_RESTRICT factors,
             int64_t n) {
  const auto zero = hn::Zero(FloatTag());
  for (int64_t i = 0; i < n; i += kLanes) {
    const auto factor = LoadPart(factors + i, n - i);
    StorePart(hn::IfThenElseZero(hn::Gt(factor, zero),
                                 hn::Mul(LoadPart(x + i, n - i), factor)),
              x + i, n - i);
  }
}

float Dot(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, int64_t n) {
  auto sum = hn::Zero(FloatTag());
  for (int64_t i = 0; i < n; i += kLanes) {
    sum = hn::MulAdd(LoadPart(a + i, n - i), LoadPart(b + i, n - i), sum);
  }
  return SumOfLanes(sum);
}

// scores[0, count) become p = exp(score - log_sum_exp), and gradient[0, count),
// of p, becomes p (gradient - mean), that of the score; [count, width) of both
// become zero.
void SoftmaxGradientRow(float* HWY_RESTRICT scores,
                        float* HWY_RESTRICT gradient, int64_t count,
                        int64_t width, float log_sum_exp, float mean) {
  const FloatTag d;
  const auto zero = hn::Zero(d);
  const auto v_log_sum_exp = hn::Set(d, log_sum_exp);
  const auto v_mean = hn::Set(d, mean);
  for (int64_t i = 0; i < width; i += kLanes) {
    if (i >= count) {
      StorePart(zero, scores + i, width - i);
      StorePart(zero, gradient + i, width - i);
      continue;
    }
    const auto p =
        FirstLanes(Exp(hn::Sub(LoadPart(scores + i, width - i), v_log_sum_exp)),
                   count - i, zero);
    const auto g = FirstLanes(
        hn::Mul(p, hn::Sub(LoadPart(gradient + i, width - i), v_mean)),
        count - i, zero);
    StorePart(p, scores + i, width - i);
    StorePart(g, gradient + i, width - i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lockstep::kernels::cpu
HWY_AFTER_NAMESPACE();
#endif  // LS_SIMD_TARGET

#if HWY_ONCE
namespace lockstep::kernels::cpu {
namespace {

// Queries at a time: their scores stay in the second-level cache, and less than
// an eighth of the work is spent beyond the diagonal at 256 positions.
constexpr int64_t kQueryBlock = 64;

// Between rows of scores; not a multiple of 4,096 bytes, whose rows would all
// want the same cache lines.
int64_t ScoreStride(const AttentionShape& s) {
  return (s.sequence_length + 15) / 16 * 16 + 16;
}

int64_t ScoreElements(const AttentionShape& s) {
  return kQueryBlock * ScoreStride(s);
}

// What the probabilities of one head of one sequence are multiplied by.
struct HeadDropout {
  const DropoutMask* mask = nullptr;  // None.
  int64_t sample = 0;
  int64_t head = 0;

  // Of position `t`'s first `count`; count <= sequence_length.
  void Fill(const AttentionShape& s, int64_t t, int64_t count,
            float* factors) const {
    const auto fill = LS_DISPATCH(DropoutFactorsOf);
    const int64_t stride = (s.sequence_length + 3) / 4 * 4;
    fill(*mask, sample, (head * s.sequence_length + t) * stride, count,
         factors);
  }
};

// One head of one sequence, as matrices of (sequence_length, head_width).
struct Head {
  const float* query;
  const float* key;
  const float* value;
  int64_t stride;
};

Head HeadOf(const AttentionShape& s, const float* qkv, int64_t row,
            int64_t head) {
  const float* const token = qkv + row * s.sequence_length * s.qkv_width();
  const int64_t shared = head / (s.head_count / s.key_value_head_count);
  const float* const key = token + s.width() + shared * s.head_width;
  return {.query = token + head * s.head_width,
          .key = key,
          .value = key + s.key_value_width(),
          .stride = s.qkv_width()};
}

HeadDropout DropoutOf(const DropoutMask* mask, int64_t row, int64_t head) {
  if (mask == nullptr) return {};
  return {.mask = mask, .sample = mask->first_sample + row, .head = head};
}

absl::Status ForwardHead(const AttentionShape& s, const Head& head,
                         const HeadDropout& dropout, float* out,
                         float* log_sum_exp, float* scores) {
  const auto drop = LS_DISPATCH(DropRow);
  float* const factors = scores + 2 * ScoreElements(s);
  const auto softmax = LS_DISPATCH(SoftmaxRow);
  const auto scale_row = LS_DISPATCH(ScaleRow);
  const auto scale =
      static_cast<float>(1 / std::sqrt(static_cast<double>(s.head_width)));
  const int64_t score_stride = ScoreStride(s);
  for (int64_t begin = 0; begin < s.sequence_length; begin += kQueryBlock) {
    const int64_t end = std::min(begin + kQueryBlock, s.sequence_length);
    const int64_t count = end - begin;
    RETURN_IF_ERROR(Sgemm(count, end, s.head_width, scale,
                          {head.query + begin * head.stride, head.stride},
                          {head.key, head.stride, true}, 0, scores,
                          score_stride));
    float sums[kQueryBlock];
    for (int64_t i = 0; i < count; ++i) {
      const int64_t seen = begin + i + 1;
      sums[i] = softmax(scores + i * score_stride, seen, end,
                        log_sum_exp + begin + i);
      if (dropout.mask != nullptr) {
        dropout.Fill(s, begin + i, seen, factors);
        drop(scores + i * score_stride, factors, seen);
      }
    }
    RETURN_IF_ERROR(Sgemm(count, s.head_width, end, 1, {scores, score_stride},
                          {head.value, head.stride}, 0, out + begin * s.width(),
                          s.width()));
    for (int64_t i = 0; i < count; ++i) {
      scale_row(out + (begin + i) * s.width(), 1 / sums[i], s.head_width);
    }
  }
  return absl::OkStatus();
}

// Of one query head.  With `first` the gradients of its keys and values are
// written, else added to.
absl::Status BackwardHead(const AttentionShape& s, const Head& head,
                          const HeadDropout& dropout, bool first,
                          const float* out, const float* log_sum_exp,
                          const float* out_gradient, float* query_gradient,
                          float* key_gradient, float* scores) {
  const auto dot = LS_DISPATCH(Dot);
  const auto softmax_gradient = LS_DISPATCH(SoftmaxGradientRow);
  const auto drop = LS_DISPATCH(DropRow);
  float* const factors = scores + 2 * ScoreElements(s);
  const auto scale =
      static_cast<float>(1 / std::sqrt(static_cast<double>(s.head_width)));
  const int64_t stride = head.stride;
  const int64_t score_stride = ScoreStride(s);
  float* const score_gradient = scores + ScoreElements(s);
  float* const value_gradient = key_gradient + s.key_value_width();
  // From the last block, which meets all keys and so writes all their
  // gradients first; the others add to them.
  const int64_t last = (s.sequence_length - 1) / kQueryBlock * kQueryBlock;
  for (int64_t begin = last; begin >= 0; begin -= kQueryBlock) {
    const int64_t end = std::min(begin + kQueryBlock, s.sequence_length);
    const int64_t count = end - begin;
    const float beta = first && begin == last ? 0 : 1;
    const MatMulInput queries{head.query + begin * stride, stride};
    const MatMulInput out_rows{out_gradient + begin * s.width(), s.width()};
    RETURN_IF_ERROR(Sgemm(count, end, s.head_width, scale, queries,
                          {head.key, stride, true}, 0, scores, score_stride));
    RETURN_IF_ERROR(Sgemm(count, end, s.head_width, 1, out_rows,
                          {head.value, stride, true}, 0, score_gradient,
                          score_stride));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = (begin + i) * s.width();
      const int64_t seen = begin + i + 1;
      float* const p = scores + i * score_stride;
      float* const p_gradient = score_gradient + i * score_stride;
      if (dropout.mask != nullptr) {
        dropout.Fill(s, begin + i, seen, factors);
        drop(p_gradient, factors, seen);
      }
      // With dropout, too, the mean is that of what reached p.
      softmax_gradient(p, p_gradient, seen, end, log_sum_exp[begin + i],
                       dot(out + at, out_gradient + at, s.head_width));
      // The values met p after dropout.
      if (dropout.mask != nullptr) drop(p, factors, seen);
    }
    RETURN_IF_ERROR(Sgemm(end, s.head_width, count, 1,
                          {scores, score_stride, true}, out_rows, beta,
                          value_gradient, stride));
    RETURN_IF_ERROR(Sgemm(end, s.head_width, count, scale,
                          {score_gradient, score_stride, true}, queries, beta,
                          key_gradient, stride));
    RETURN_IF_ERROR(Sgemm(count, s.head_width, end, scale,
                          {score_gradient, score_stride}, {head.key, stride}, 0,
                          query_gradient + begin * stride, stride));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t AttentionWorkspace(const AttentionShape& shape) {
  return 2 * ScoreElements(shape) + ScoreStride(shape);
}

absl::Status AttentionForward(ThreadPool& pool, const AttentionShape& s,
                              const float* qkv, float* out, float* log_sum_exp,
                              float* workspace, const DropoutMask* dropout) {
  FirstError error;
  pool.ParallelFor(s.row_count * s.head_count, [&](int64_t i, int thread) {
    const int64_t row = i / s.head_count;
    const int64_t head = i % s.head_count;
    error.Update(ForwardHead(
        s, HeadOf(s, qkv, row, head), DropoutOf(dropout, row, head),
        out + row * s.sequence_length * s.width() + head * s.head_width,
        log_sum_exp + i * s.sequence_length,
        workspace + thread * AttentionWorkspace(s)));
  });
  return error.Take();
}

absl::Status AttentionBackward(ThreadPool& pool, const AttentionShape& s,
                               const float* qkv, const float* out,
                               const float* log_sum_exp,
                               const float* out_gradient, float* qkv_gradient,
                               float* workspace, const DropoutMask* dropout) {
  FirstError error;
  const int64_t group = s.head_count / s.key_value_head_count;
  // The heads that share keys, one after the other.
  const int64_t group_count = s.row_count * s.key_value_head_count;
  pool.ParallelFor(group_count, [&](int64_t i, int thread) {
    const int64_t row = i / s.key_value_head_count;
    const int64_t shared = i % s.key_value_head_count;
    float* const gradient =
        qkv_gradient + row * s.sequence_length * s.qkv_width();
    for (int64_t member = 0; member < group; ++member) {
      const int64_t head = shared * group + member;
      const int64_t at =
          row * s.sequence_length * s.width() + head * s.head_width;
      error.Update(BackwardHead(
          s, HeadOf(s, qkv, row, head), DropoutOf(dropout, row, head),
          member == 0, out + at,
          log_sum_exp + (row * s.head_count + head) * s.sequence_length,
          out_gradient + at, gradient + head * s.head_width,
          gradient + s.width() + shared * s.head_width,
          workspace + thread * AttentionWorkspace(s)));
    }
  });
  return error.Take();
}

}  // namespace lockstep::kernels::cpu
#endif  // HWY_ONCE
