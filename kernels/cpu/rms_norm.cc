#include "kernels/cpu/rms_norm.h"

#include <cmath>
#include <cstring>

#include "kernels/cpu/row_sums.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rms_norm.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

#if LS_SIMD_TARGET
HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::cpu {
namespace HWY_NAMESPACE {

void RmsNormalizeRow(const float* HWY_RESTRICT x,
                     const float* HWY_RESTRICT weight, int64_t width,
                     float epsilon, float* HWY_RESTRICT out, float* rstd) {
  const FloatTag d;
  auto squares = hn::Zero(d);
  for (int64_t i = 0; i < width; i += kLanes) {
    const auto v = LoadPart(x + i, width - i);
    squares = hn::MulAdd(v, v, squares);
  }
  *rstd =
      1 / std::sqrt(SumOfLanes(squares) / static_cast<float>(width) + epsilon);
  const auto v_rstd = hn::Set(d, *rstd);
  for (int64_t i = 0; i < width; i += kLanes) {
    const auto normal = hn::Mul(LoadPart(x + i, width - i), v_rstd);
    StorePart(hn::Mul(normal, LoadPart(weight + i, width - i)), out + i,
              width - i);
  }
}

// One row; adds to the two sums, each (width).  x_sum may be null.
void RmsGradientOfRow(const float* HWY_RESTRICT x,
                      const float* HWY_RESTRICT weight, float rstd,
                      const float* HWY_RESTRICT out_gradient, int64_t width,
                      bool overwrite, float* HWY_RESTRICT x_gradient,
                      float* HWY_RESTRICT weight_sum,
                      float* HWY_RESTRICT x_sum) {
  const FloatTag d;
  const auto v_rstd = hn::Set(d, rstd);
  auto gn_sum = hn::Zero(d);
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t left = width - i;
    const auto normal = hn::Mul(LoadPart(x + i, left), v_rstd);
    // Zero past the end of the row, and so are the sums below.
    const auto out = LoadPart(out_gradient + i, left);
    const auto g = hn::Mul(out, LoadPart(weight + i, left));
    gn_sum = hn::MulAdd(g, normal, gn_sum);
    StorePart(hn::MulAdd(out, normal, LoadPart(weight_sum + i, left)),
              weight_sum + i, left);
  }
  const auto gn_mean =
      hn::Set(d, SumOfLanes(gn_sum) / static_cast<float>(width));
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t left = width - i;
    const auto normal = hn::Mul(LoadPart(x + i, left), v_rstd);
    const auto g =
        hn::Mul(LoadPart(out_gradient + i, left), LoadPart(weight + i, left));
    auto gradient = hn::Mul(v_rstd, hn::NegMulAdd(normal, gn_mean, g));
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

void RmsNormForward(ThreadPool& pool, const float* x, const float* weight,
                    int64_t row_count, int64_t width, double epsilon,
                    float* out, float* rstd) {
  const auto normalize = LS_DISPATCH(RmsNormalizeRow);
  ParallelForBlocks(
      pool, row_count, kRowSumsBlock, [&](int64_t begin, int64_t end, int) {
        for (int64_t row = begin; row < end; ++row) {
          normalize(x + row * width, weight, width, static_cast<float>(epsilon),
                    out + row * width, rstd + row);
        }
      });
}

void RmsNormBackward(ThreadPool& pool, const float* x, const float* weight,
                     const float* rstd, const float* out_gradient,
                     int64_t row_count, int64_t width,
                     const RmsNormGradients& gradients, float* workspace) {
  const auto gradient = LS_DISPATCH(RmsGradientOfRow);
  const bool sum_x = gradients.x_column_sums != nullptr;
  const int64_t stride = 2 * width;  // Weight, x.
  ParallelForBlocks(
      pool, row_count, kRowSumsBlock, [&](int64_t begin, int64_t end, int) {
        float* const sums = workspace + begin / kRowSumsBlock * stride;
        std::memset(sums, 0, stride * sizeof(float));
        for (int64_t row = begin; row < end; ++row) {
          gradient(x + row * width, weight, rstd[row],
                   out_gradient + row * width, width, gradients.overwrite,
                   gradients.x + row * width, sums,
                   sum_x ? sums + width : nullptr);
        }
      });
  const int64_t block_count = RowSumsBlockCount(row_count);
  SumRows(pool, workspace, block_count, stride, width, gradients.weight);
  if (sum_x) {
    SumRows(pool, workspace + width, block_count, stride, width,
            gradients.x_column_sums);
  }
}

}  // namespace lockstep::kernels::cpu
#endif  // HWY_ONCE
