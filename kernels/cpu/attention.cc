#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/kernel_workspace.h"
#include "kernels/cpu/prefetch.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/log-inl.h"
#include "kernels/cpu/philox-inl.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/tile-inl.h"

// Once, for all instruction sets.
#ifndef KERNELS_CPU_ATTENTION_CC_
#define KERNELS_CPU_ATTENTION_CC_
namespace lockstep::kernels::cpu {
namespace {

// Scores are held with a row per key and a column for each of the block's
// queries, so that
//
// - the softmax of a vector of queries runs over rows, lane by lane, without
//   sums over lanes or masked ends,
// - no product but that of the scores needs an operand transposed, and there it
//   is that of the block's queries alone, once for all keys.
//
// Scores of keys after their query are not computed, but for those that share a
// tile with others, and not read: a mask of zeros would turn a NaN behind it
// into one before it.
constexpr int64_t kQueryBlock = workspace::Attention::kQueryBlock;

// Keys that a block of queries meets at a time in backward, so that the scores
// and their gradients stay in the second-level cache; a multiple of
// kQueryBlock, so that the diagonal is met in one piece.
constexpr int64_t kKeyBlock = workspace::Attention::kKeyBlock;

// Keys whose values are read again for each tile of a block's queries before
// those of the next keys are; likewise.
constexpr int64_t kDepth = 128;

// Between rows of the compact copies of a head: whole vectors, zeros behind.
inline int64_t PaddedWidth(const AttentionShape& s) {
  return workspace::Attention(s.sequence_length, s.head_width).padded_width;
}

// One head of one sequence, as matrices of (sequence_length, head_width).
struct Head {
  const float* query;
  const float* key;
  const float* value;
  int64_t stride;
};

// What the probabilities of one head of one sequence are multiplied by.
struct HeadDropout {
  const DropoutMask* mask = nullptr;  // None.
  int64_t sample = 0;
  int64_t head = 0;
};

// A thread's workspace, carved into whole cache lines.
class Scratch {
 public:
  Scratch(const AttentionShape& s, float* memory) {
    const workspace::Attention sizes(s.sequence_length, s.head_width);
    key = memory;
    value = key + sizes.head;
    query = value + sizes.head;
    query_columns = query + sizes.tile;
    all_scores = scores = query_columns + sizes.tile;
    score_gradients = scores + sizes.scores;
    out_gradient = score_gradients + sizes.scores;
    out_gradient_columns = out_gradient + sizes.tile;
  }

  // Copies of the head's, (sequence_length, PaddedWidth): the rows of some
  // strides would all want the same cache lines.
  float* key;
  float* value;
  // Of a block of queries, scaled: (kQueryBlock, PaddedWidth), and transposed.
  // Rows past the last query are left as they were: their columns of scores are
  // computed, and not read.
  float* query;
  float* query_columns;
  // In forward: (sequence_length, kQueryBlock).
  float* all_scores;
  // In backward: (up to kKeyBlock, kQueryBlock), and as `query` above.
  float* scores;
  float* score_gradients;
  float* out_gradient;
  float* out_gradient_columns;
};

}  // namespace
}  // namespace lockstep::kernels::cpu
#endif  // KERNELS_CPU_ATTENTION_CC_

#if LS_SIMD_TARGET
HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::cpu {
namespace HWY_NAMESPACE {

// A block of queries, and those of its keys that are looked at together.
struct Block {
  int64_t begin;  // Queries.
  int64_t end;
  int64_t key_begin;  // A multiple of kQueryBlock.
  int64_t key_end;    // At most `end`.

  int64_t vectors() const { return (end - begin + kLanes - 1) / kLanes; }
};

// Rows of a tile that begins at `row`, of rows before `end`; a tile does not
// reach over `border`.
HWY_INLINE int64_t TileRows(int64_t row, int64_t border, int64_t end) {
  return std::min<int64_t>(kTileRows,
                           (row < border ? std::min(border, end) : end) - row);
}

// scores (keys, queries) = rows columns: of rows (keys, width) and columns
// (width, kQueryBlock).
void KeysTimesQueries(const Block& b, int64_t width, const float* rows,
                      int64_t row_stride, const float* columns, float* scores,
                      RowPrefetcher& ahead) {
  for (int64_t k = b.key_begin; k < b.key_end;) {
    const int64_t count = std::min<int64_t>(kTileRows, b.key_end - k);
    const int64_t first = std::max<int64_t>(0, k - b.begin) / kLanes * kLanes;
    Multiply<Triangle::kNone>(
        count, width, b.vectors() * kLanes - first,
        {.a = rows + (k - b.key_begin) * row_stride,
         .a_row = row_stride,
         .a_step = 1,
         .b = columns + first,
         .b_step = kQueryBlock,
         .c = scores + (k - b.key_begin) * kQueryBlock + first,
         .c_row = kQueryBlock});
    k += count;
    ahead.Advance(count);
  }
}

// out (queries, width) = or += scores^T rows: of the keys that each query sees.
void SumOverKeys(const Block& b, int64_t width, const float* scores,
                 const float* rows, int64_t row_stride, bool add, float* out,
                 int64_t out_stride) {
  for (int64_t begin = b.key_begin; begin < b.key_end; begin += kDepth) {
    const int64_t end = std::min(begin + kDepth, b.key_end);
    for (int64_t q = b.begin; q < b.end;) {
      const int64_t count = std::min<int64_t>(kTileRows, b.end - q);
      const Product p = {
          .a = scores + (begin - b.key_begin) * kQueryBlock + q - b.begin,
          .a_row = 1,
          .a_step = kQueryBlock,
          .b = rows + (begin - b.key_begin) * row_stride,
          .b_step = row_stride,
          .c = out + (q - b.begin) * out_stride,
          .c_row = out_stride,
          .add = add || begin > b.key_begin};
      if (end > b.begin) {
        Multiply<Triangle::kTail>(count, q + 1 - begin, width, p);
      } else {
        Multiply<Triangle::kNone>(count, end - begin, width, p);
      }
      q += count;
    }
  }
}

// out (keys, width) = or += scores rows: of the queries that see each key.
void SumOverQueries(const Block& b, int64_t width, const float* scores,
                    const float* rows, int64_t row_stride, bool add, float* out,
                    int64_t out_stride) {
  for (int64_t k = b.key_begin; k < b.key_end;) {
    const int64_t count = TileRows(k, b.begin, b.key_end);
    const int64_t first = std::max<int64_t>(0, k - b.begin);
    const Product p = {.a = scores + (k - b.key_begin) * kQueryBlock + first,
                       .a_row = kQueryBlock,
                       .a_step = 1,
                       .b = rows + first * row_stride,
                       .b_step = row_stride,
                       .c = out + (k - b.key_begin) * out_stride,
                       .c_row = out_stride,
                       .add = add};
    if (k < b.begin) {
      Multiply<Triangle::kNone>(count, b.end - b.begin, width, p);
    } else {
      Multiply<Triangle::kHead>(count, b.end - (k + count - 1), width, p);
    }
    k += count;
  }
}

// Of a vector of queries from `query`: the factors of their probabilities.
class VectorDropout {
 public:
  VectorDropout(const AttentionShape& s, const HeadDropout& dropout,
                int64_t query)
      : dropout_(dropout), rule_(*dropout.mask) {
    const WordTag d;
    const auto stride = static_cast<uint32_t>((s.sequence_length + 3) / 4);
    const auto row =
        static_cast<uint32_t>(dropout.head * s.sequence_length + query);
    block_ = hn::Mul(hn::Iota(d, row), hn::Set(d, stride));
  }

  // Of the keys from `key`, a multiple of 4.
  HWY_INLINE void Factors(int64_t key, FloatVector factors[4]) const {
    const WordTag d;
    WordVector words[4];
    PhiloxWords(*dropout_.mask, dropout_.sample,
                hn::Add(block_, hn::Set(d, static_cast<uint32_t>(key / 4))),
                words);
    for (int i = 0; i < 4; ++i) factors[i] = rule_.FactorOf(words[i]);
  }

 private:
  const HeadDropout dropout_;
  const DropoutRule rule_;
  WordVector block_;  // Of key 0.
};

// x factor, and 0 where the factor is 0.
HWY_INLINE FloatVector Drop(FloatVector x, FloatVector factor) {
  return hn::IfThenElseZero(hn::Gt(factor, hn::Zero(FloatTag())),
                            hn::Mul(x, factor));
}

// ln sum + max.
HWY_INLINE hn::Vec<hn::Half<FloatTag>> LogSumExp(
    hn::Vec<hn::Half<FloatTag>> sum, hn::Vec<hn::Half<FloatTag>> max) {
  const hn::ScalableTag<double> d;
  return hn::DemoteTo(
      hn::Half<FloatTag>(),
      hn::Add(LogOf(d, hn::PromoteTo(d, sum)), hn::PromoteTo(d, max)));
}

// The scores of kLanes queries become exp(score - max), times the dropout's
// factor.  sums: of the exponentials.
//
// A NaN may get lost in the maximum; it comes back in the sum.
void Softmax(const AttentionShape& s, const HeadDropout& dropout, int64_t query,
             int64_t end, float* HWY_RESTRICT scores, float* log_sum_exp,
             float* sums) {
  const FloatTag d;
  const auto lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  const auto zero = hn::Zero(d);
  // All of the queries see the keys before.
  const int64_t seen = std::min(query + 1, end);
  auto max = lowest;
  for (int64_t k = 0; k < seen; ++k) {
    max = hn::Max(max, hn::LoadU(d, scores + k * kQueryBlock));
  }
  for (int64_t k = seen; k < end; ++k) {
    max = hn::Max(max, FirstLanes(lowest, k - query,
                                  hn::LoadU(d, scores + k * kQueryBlock)));
  }
  auto sum = zero;
  for (int64_t k = 0; k < seen; ++k) {
    float* const at = scores + k * kQueryBlock;
    const auto e = Exp(hn::Sub(hn::LoadU(d, at), max));
    sum = hn::Add(sum, e);
    hn::StoreU(e, d, at);
  }
  for (int64_t k = seen; k < end; ++k) {
    float* const at = scores + k * kQueryBlock;
    const auto e = Exp(hn::Sub(hn::LoadU(d, at), max));
    sum = hn::Add(sum, FirstLanes(zero, k - query, e));
    hn::StoreU(e, d, at);
  }
  if (dropout.mask != nullptr) {
    const VectorDropout lanes(s, dropout, query);
    for (int64_t k = 0; k < end; k += 4) {
      FloatVector factors[4];
      lanes.Factors(k, factors);
      for (int64_t i = 0; i < 4 && k + i < end; ++i) {
        float* const at = scores + (k + i) * kQueryBlock;
        hn::StoreU(Drop(hn::LoadU(d, at), factors[i]), d, at);
      }
    }
  }
  hn::StoreU(sum, d, sums);
  const hn::Half<FloatTag> half;
  hn::StoreU(LogSumExp(hn::LowerHalf(half, sum), hn::LowerHalf(half, max)),
             half, log_sum_exp);
  hn::StoreU(LogSumExp(hn::UpperHalf(half, sum), hn::UpperHalf(half, max)),
             half, log_sum_exp + kLanes / 2);
}

void ScaleRow(float* x, float scale, int64_t n) {
  const auto v_scale = hn::Set(FloatTag(), scale);
  for (int64_t i = 0; i < n; i += kLanes) {
    StorePart(hn::Mul(LoadPart(x + i, n - i), v_scale), x + i, n - i);
  }
}

float Dot(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, int64_t n) {
  auto sum = hn::Zero(FloatTag());
  for (int64_t i = 0; i < n; i += kLanes) {
    sum = hn::MulAdd(LoadPart(a + i, n - i), LoadPart(b + i, n - i), sum);
  }
  return SumOfLanes(sum);
}

// Of kLanes queries and count keys from `key`: the scores become
// p = exp(score - log_sum_exp) times the dropout's factor, and the gradients of
// those become p (gradient - mean), those of the scores.
template <bool kDropout>
void SoftmaxGradient(const AttentionShape& s, const HeadDropout& dropout,
                     int64_t query, int64_t key, int64_t count,
                     const float* log_sum_exp, const float* means,
                     float* HWY_RESTRICT scores,
                     float* HWY_RESTRICT gradients) {
  const FloatTag d;
  const auto v_log_sum_exp = hn::LoadU(d, log_sum_exp);
  const auto mean = hn::LoadU(d, means);
  const auto step = [&](int64_t k, auto factor) HWY_ATTR {
    float* const at = scores + k * kQueryBlock;
    float* const gradient_at = gradients + k * kQueryBlock;
    const auto p = Exp(hn::Sub(hn::LoadU(d, at), v_log_sum_exp));
    const auto gradient = factor(hn::LoadU(d, gradient_at));
    // With dropout, too, the mean is that of what reached p.
    hn::StoreU(hn::Mul(p, hn::Sub(gradient, mean)), d, gradient_at);
    // The values met p after dropout.
    hn::StoreU(factor(p), d, at);
  };
  if constexpr (!kDropout) {
    for (int64_t k = 0; k < count; ++k) {
      step(k, [](FloatVector x) HWY_ATTR { return x; });
    }
    return;
  }
  const VectorDropout lanes(s, dropout, query);
  for (int64_t k = 0; k < count; k += 4) {
    FloatVector factors[4];
    lanes.Factors(key + k, factors);
    for (int64_t i = 0; i < 4 && k + i < count; ++i) {
      step(k + i, [&](FloatVector x) HWY_ATTR { return Drop(x, factors[i]); });
    }
  }
}

void ForwardHead(const AttentionShape& s, const Head& head,
                 const HeadDropout& dropout, float* out, float* log_sum_exp,
                 float* workspace, RowPrefetcher& ahead) {
  const auto scale =
      static_cast<float>(1 / std::sqrt(static_cast<double>(s.head_width)));
  const int64_t padded = PaddedWidth(s);
  const Scratch w(s, workspace);
  CopyRows(head.key, head.stride, s.sequence_length, s.head_width, 1, w.key,
           padded);
  CopyRows(head.value, head.stride, s.sequence_length, s.head_width, 1, w.value,
           padded);
  for (int64_t begin = 0; begin < s.sequence_length; begin += kQueryBlock) {
    const int64_t end = std::min(begin + kQueryBlock, s.sequence_length);
    const Block b = {
        .begin = begin, .end = end, .key_begin = 0, .key_end = end};
    CopyRows(head.query + begin * head.stride, head.stride, end - begin,
             s.head_width, scale, w.query, padded);
    Transpose(w.query, kQueryBlock, padded, w.query_columns);
    KeysTimesQueries(b, s.head_width, w.key, padded, w.query_columns,
                     w.all_scores, ahead);
    float sums[kQueryBlock], logs[kQueryBlock];
    for (int64_t i = 0; i < end - begin; i += kLanes) {
      Softmax(s, dropout, begin + i, std::min(begin + i + kLanes, end),
              w.all_scores + i, logs + i, sums + i);
    }
    std::copy_n(logs, end - begin, log_sum_exp + begin);
    SumOverKeys(b, s.head_width, w.all_scores, w.value, padded, false,
                out + begin * s.width(), s.width());
    for (int64_t i = 0; i < end - begin; ++i) {
      ScaleRow(out + (begin + i) * s.width(), 1 / sums[i], s.head_width);
    }
  }
}

// Of one query head.  With `first` the gradients of its keys and values are
// written, else added to.
void BackwardHead(const AttentionShape& s, const Head& head,
                  const HeadDropout& dropout, bool first, const float* out,
                  const float* log_sum_exp, const float* out_gradient,
                  float* query_gradient, float* key_gradient, float* workspace,
                  RowPrefetcher& ahead) {
  const auto scale =
      static_cast<float>(1 / std::sqrt(static_cast<double>(s.head_width)));
  const int64_t padded = PaddedWidth(s);
  const int64_t stride = head.stride;
  float* const value_gradient = key_gradient + s.key_value_width();
  const Scratch w(s, workspace);
  if (first) {
    CopyRows(head.key, stride, s.sequence_length, s.head_width, 1, w.key,
             padded);
    CopyRows(head.value, stride, s.sequence_length, s.head_width, 1, w.value,
             padded);
  }
  // From the last block, which meets all keys and so writes all their
  // gradients first; the others add to them.
  const int64_t last = (s.sequence_length - 1) / kQueryBlock * kQueryBlock;
  for (int64_t begin = last; begin >= 0; begin -= kQueryBlock) {
    const int64_t end = std::min(begin + kQueryBlock, s.sequence_length);
    const bool add = !first || begin < last;
    CopyRows(head.query + begin * stride, stride, end - begin, s.head_width,
             scale, w.query, padded);
    Transpose(w.query, kQueryBlock, padded, w.query_columns);
    CopyRows(out_gradient + begin * s.width(), s.width(), end - begin,
             s.head_width, 1, w.out_gradient, padded);
    Transpose(w.out_gradient, kQueryBlock, padded, w.out_gradient_columns);
    float means[kQueryBlock] = {}, logs[kQueryBlock] = {};
    for (int64_t i = 0; i < end - begin; ++i) {
      const int64_t at = (begin + i) * s.width();
      means[i] = Dot(out + at, out_gradient + at, s.head_width);
      logs[i] = log_sum_exp[begin + i];
    }
    for (int64_t key = 0; key < end; key += kKeyBlock) {
      const Block b = {.begin = begin,
                       .end = end,
                       .key_begin = key,
                       .key_end = std::min(key + kKeyBlock, end)};
      KeysTimesQueries(b, s.head_width, w.key + key * padded, padded,
                       w.query_columns, w.scores, ahead);
      KeysTimesQueries(b, s.head_width, w.value + key * padded, padded,
                       w.out_gradient_columns, w.score_gradients, ahead);
      for (int64_t i = 0; i < end - begin; i += kLanes) {
        const int64_t count = std::min(b.key_end, begin + i + kLanes) - key;
        const auto softmax_gradient = dropout.mask == nullptr
                                          ? SoftmaxGradient<false>
                                          : SoftmaxGradient<true>;
        softmax_gradient(s, dropout, begin + i, key, count, logs + i, means + i,
                         w.scores + i, w.score_gradients + i);
      }
      SumOverQueries(b, s.head_width, w.scores, w.out_gradient, padded, add,
                     value_gradient + key * stride, stride);
      SumOverQueries(b, s.head_width, w.score_gradients, w.query, padded, add,
                     key_gradient + key * stride, stride);
      SumOverKeys(b, s.head_width, w.score_gradients, w.key + key * padded,
                  padded, key > 0, query_gradient + begin * stride, stride);
    }
    for (int64_t i = begin; i < end; ++i) {
      ScaleRow(query_gradient + i * stride, scale, s.head_width);
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

// Where the output of a head begins.
int64_t OutOf(const AttentionShape& s, int64_t row, int64_t head) {
  return row * s.sequence_length * s.width() + head * s.head_width;
}

// Keys over all blocks of queries.
int64_t MetKeys(const AttentionShape& s) {
  int64_t sum = 0;
  for (int64_t end = kQueryBlock; end < s.sequence_length; end += kQueryBlock) {
    sum += end;
  }
  return sum + s.sequence_length;
}

}  // namespace

absl::Status AttentionForward(ThreadPool& pool, const AttentionShape& s,
                              const float* qkv, float* out, float* log_sum_exp,
                              float* workspace, const DropoutMask* dropout) {
  const auto forward_head = LS_DISPATCH(ForwardHead);
  const int64_t count = s.row_count * s.head_count;
  const workspace::Attention sizes(s.sequence_length, s.head_width);
  pool.ParallelFor(count, [&](int64_t i, int thread) {
    const int64_t row = i / s.head_count;
    const int64_t head = i % s.head_count;
    RowPrefetcher ahead(s.sequence_length, s.head_width, MetKeys(s));
    // What this thread will take next, if all go at the same pace.
    const int64_t next = i + pool.thread_count();
    if (next < count) {
      const int64_t next_row = next / s.head_count;
      const int64_t next_head = next % s.head_count;
      const Head h = HeadOf(s, qkv, next_row, next_head);
      ahead.Add({{h.query, h.stride},
                 {h.key, h.stride},
                 {h.value, h.stride},
                 {out + OutOf(s, next_row, next_head), s.width()}});
    }
    forward_head(s, HeadOf(s, qkv, row, head), DropoutOf(dropout, row, head),
                 out + OutOf(s, row, head), log_sum_exp + i * s.sequence_length,
                 workspace + thread * sizes.count(), ahead);
  });
  return absl::OkStatus();
}

absl::Status AttentionBackward(ThreadPool& pool, const AttentionShape& s,
                               const float* qkv, const float* out,
                               const float* log_sum_exp,
                               const float* out_gradient, float* qkv_gradient,
                               float* workspace, const DropoutMask* dropout) {
  const auto backward_head = LS_DISPATCH(BackwardHead);
  const int64_t group = s.head_count / s.key_value_head_count;
  // The heads that share keys, one after the other.
  const int64_t group_count = s.row_count * s.key_value_head_count;
  const workspace::Attention sizes(s.sequence_length, s.head_width);
  pool.ParallelFor(group_count, [&](int64_t i, int thread) {
    const int64_t row = i / s.key_value_head_count;
    const int64_t shared = i % s.key_value_head_count;
    float* const gradient =
        qkv_gradient + row * s.sequence_length * s.qkv_width();
    for (int64_t member = 0; member < group; ++member) {
      const int64_t head = shared * group + member;
      // Keys are met for the scores and for their gradients.
      RowPrefetcher ahead(s.sequence_length, s.head_width, 2 * MetKeys(s));
      const bool same_keys = member + 1 < group;
      const int64_t next = same_keys ? row * s.head_count + head + 1
                                     : (i + pool.thread_count()) * group;
      if (next < s.row_count * s.head_count) {
        const int64_t next_row = next / s.head_count;
        const int64_t next_head = next % s.head_count;
        const Head h = HeadOf(s, qkv, next_row, next_head);
        const Head g = HeadOf(s, qkv_gradient, next_row, next_head);
        const int64_t at = OutOf(s, next_row, next_head);
        ahead.Add({{h.query, h.stride},
                   {g.query, g.stride},
                   {out + at, s.width()},
                   {out_gradient + at, s.width()}});
        if (!same_keys) {
          ahead.Add({{h.key, h.stride},
                     {h.value, h.stride},
                     {g.key, g.stride},
                     {g.value, g.stride}});
        }
      }
      const int64_t at = OutOf(s, row, head);
      backward_head(
          s, HeadOf(s, qkv, row, head), DropoutOf(dropout, row, head),
          member == 0, out + at,
          log_sum_exp + (row * s.head_count + head) * s.sequence_length,
          out_gradient + at, gradient + head * s.head_width,
          gradient + s.width() + shared * s.head_width,
          workspace + thread * sizes.count(), ahead);
    }
  });
  return absl::OkStatus();
}

}  // namespace lockstep::kernels::cpu
#endif  // HWY_ONCE
