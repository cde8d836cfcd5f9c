#include "kernels/cpu/embedding.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/row_sums.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/embedding.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

#if LS_SIMD_TARGET
HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::cpu {
namespace HWY_NAMESPACE {

// out = a + b; out may be a or b.
void AddRow(const float* a, const float* b, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += kLanes) {
    StorePart(hn::Add(LoadPart(a + i, n - i), LoadPart(b + i, n - i)), out + i,
              n - i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lockstep::kernels::cpu
HWY_AFTER_NAMESPACE();
#endif  // LS_SIMD_TARGET

#if HWY_ONCE
namespace lockstep::kernels::cpu {

void EmbeddingForward(ThreadPool& pool, const int32_t* tokens,
                      const float* token_table, const float* position_table,
                      int64_t row_count, int64_t sequence_length, int64_t width,
                      float* out) {
  const auto add = LS_DISPATCH(AddRow);
  ParallelForBlocks(pool, row_count * sequence_length, 64,
                    [&](int64_t begin, int64_t end, int) {
                      for (int64_t i = begin; i < end; ++i) {
                        if (position_table == nullptr) {
                          std::memcpy(out + i * width,
                                      token_table + tokens[i] * width,
                                      width * sizeof(float));
                          continue;
                        }
                        add(token_table + tokens[i] * width,
                            position_table + i % sequence_length * width, width,
                            out + i * width);
                      }
                    });
}

void AddTokenRows(ThreadPool& pool, const int32_t* tokens, const float* rows,
                  int64_t token_count, int64_t width, float* table) {
  const auto add = LS_DISPATCH(AddRow);
  // Split by columns: every thread meets all tokens, in order.
  ParallelForBlocks(pool, width, 64, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = 0; i < token_count; ++i) {
      float* const to = table + tokens[i] * width + begin;
      add(to, rows + i * width + begin, end - begin, to);
    }
  });
}

void PositionEmbeddingBackward(ThreadPool& pool, const float* gradient,
                               int64_t row_count, int64_t sequence_length,
                               int64_t position_max, int64_t width,
                               float* table_gradient) {
  const int64_t used = sequence_length * width;
  SumRows(pool, gradient, row_count, used, used, table_gradient);
  std::memset(table_gradient + used, 0,
              (position_max * width - used) * sizeof(float));
}

}  // namespace lockstep::kernels::cpu
#endif  // HWY_ONCE
