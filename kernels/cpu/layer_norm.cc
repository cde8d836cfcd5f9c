#include "kernels/cpu/layer_norm.h"

#include <cmath>
#include <cstring>

#include "kernels/cpu/row_sums.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/layer_norm.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

#if LS_SIMD_TARGET
HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::cpu {
namespace HWY_NAMESPACE {

void NormalizeRow(const float* HWY_RESTRICT x, const float* HWY_RESTRICT weight,
                  const float* HWY_RESTRICT bias, int64_t width, float epsilon,
                  float* HWY_RESTRICT out, float* mean, float* rstd) {
  const FloatTag d;
  const auto zero = hn::Zero(d);
  auto sum = zero;
  for (int64_t i = 0; i < width; i += kLanes) {
    sum = hn::Add(sum, LoadPart(x + i, width - i));
  }
  *mean = SumOfLanes(sum) / static_cast<float>(width);
  const auto v_mean = hn::Set(d, *mean);
  auto squares = zero;
  for (int64_t i = 0; i < width; i += kLanes) {
    const auto difference = FirstLanes(
        hn::Sub(LoadPart(x + i, width - i), v_mean), width - i, zero);
    squares = hn::MulAdd(difference, difference, squares);
  }
  *rstd =
      1 / std::sqrt(SumOfLanes(squares) / static_cast<float>(width) + epsilon);
  const auto v_rstd = hn::Set(d, *rstd);
  for (int64_t i = 0; i < width; i += kLanes) {
    const auto normal =
        hn::Mul(hn::Sub(LoadPart(x + i, width - i), v_mean), v_rstd);
    StorePart(hn::MulAdd(normal, LoadPart(weight + i, width - i),
                         LoadPart(bias + i, width - i)),
              out + i, width - i);
  }
}

// One row; adds to the three sums, each (width).  x_sum may be null.
void GradientOfRow(const float* HWY_RESTRICT x,
                   const float* HWY_RESTRICT weight, float mean, float rstd,
                   const float* HWY_RESTRICT out_gradient, int64_t width,
                   bool overwrite, float* HWY_RESTRICT x_gradient,
                   float* HWY_RESTRICT weight_sum, float* HWY_RESTRICT bias_sum,
                   float* HWY_RESTRICT x_sum) {
  const FloatTag d;
  const auto v_mean = hn::Set(d, mean);
  const auto v_rstd = hn::Set(d, rstd);
  auto g_sum = hn::Zero(d);
  auto gn_sum = hn::Zero(d);
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t left = width - i;
    const auto normal = hn::Mul(hn::Sub(LoadPart(x + i, left), v_mean), v_rstd);
    // Zero past the end of the row, and so are the sums below.
    const auto out = LoadPart(out_gradient + i, left);
    const auto g = hn::Mul(out, LoadPart(weight + i, left));
    g_sum = hn::Add(g_sum, g);
    gn_sum = hn::MulAdd(g, normal, gn_sum);
    StorePart(hn::MulAdd(out, normal, LoadPart(weight_sum + i, left)),
              weight_sum + i, left);
    StorePart(hn::Add(out, LoadPart(bias_sum + i, left)), bias_sum + i, left);
  }
  const auto g_mean = hn::Set(d, SumOfLanes(g_sum) / static_cast<float>(width));
  const auto gn_mean =
      hn::Set(d, SumOfLanes(gn_sum) / static_cast<float>(width));
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t left = width - i;
    const auto normal = hn::Mul(hn::Sub(LoadPart(x + i, left), v_mean), v_rstd);
    const auto g =
        hn::Mul(LoadPart(out_gradient + i, left), LoadPart(weight + i, left));
    const auto centred = hn::NegMulAdd(normal, gn_mean, hn::Sub(g, g_mean));
    auto gradient = hn::Mul(v_rstd, centred);
    if (!overwrite) {
      gradient = hn::Add(LoadPart(x_gradient + i, left), gradient);
    }
    StorePart(gradient, x_gradient + i, left);
    if (x_sum != nullptr) {
      StorePart(hn::Add(LoadPart(x_sum + i, left), gradient), x_sum + i, left);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lockstep::kernels::cpu
HWY_AFTER_NAMESPACE();
#endif  // LS_SIMD_TARGET

#if HWY_ONCE
namespace lockstep::kernels::cpu {

void LayerNormForward(ThreadPool& pool, const float* x, const float* weight,
                      const float* bias, int64_t row_count, int64_t width,
                      double epsilon, float* out, float* mean, float* rstd) {
  const auto normalize = LS_DISPATCH(NormalizeRow);
  ParallelForBlocks(pool, row_count, kRowSumsBlock,
                    [&](int64_t begin, int64_t end, int) {
                      for (int64_t row = begin; row < end; ++row) {
                        normalize(x + row * width, weight, bias, width,
                                  static_cast<float>(epsilon),
                                  out + row * width, mean + row, rstd + row);
                      }
                    });
}

void LayerNormBackward(ThreadPool& pool, const float* x, const float* weight,
                       const float* mean, const float* rstd,
                       const float* out_gradient, int64_t row_count,
                       int64_t width, const LayerNormGradients& gradients,
                       float* workspace) {
  const auto gradient = LS_DISPATCH(GradientOfRow);
  const bool sum_x = gradients.x_column_sums != nullptr;
  const int64_t stride = 3 * width;  // Weight, bias, x.
  ParallelForBlocks(
      pool, row_count, kRowSumsBlock, [&](int64_t begin, int64_t end, int) {
        float* const sums = workspace + begin / kRowSumsBlock * stride;
        std::memset(sums, 0, stride * sizeof(float));
        for (int64_t row = begin; row < end; ++row) {
          gradient(x + row * width, weight, mean[row], rstd[row],
                   out_gradient + row * width, width, gradients.overwrite,
                   gradients.x + row * width, sums, sums + width,
                   sum_x ? sums + 2 * width : nullptr);
        }
      });
  const int64_t block_count = RowSumsBlockCount(row_count);
  SumRows(pool, workspace, block_count, stride, width, gradients.weight);
  SumRows(pool, workspace + width, block_count, stride, width, gradients.bias);
  if (sum_x) {
    SumRows(pool, workspace + 2 * width, block_count, stride, width,
            gradients.x_column_sums);
  }
}

}  // namespace lockstep::kernels::cpu
#endif  // HWY_ONCE
