#include "kernels/cpu/targets.h"
#include "kernels/kernel_testing.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/tile_test.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/tile-inl.h"

// Once, for all instruction sets.
#ifndef KERNELS_CPU_TILE_TEST_CC_
#define KERNELS_CPU_TILE_TEST_CC_
namespace lockstep::kernels::cpu {
namespace {

enum class Terms { kAll, kWithoutHead, kWithTail };

// Arrays of a product, as for Product below.
struct Arrays {
  const float* a;
  int64_t a_row, a_step;
  const float* b;
  int64_t b_step;
  float* c;
  int64_t c_row;
  bool add;
};

}  // namespace
}  // namespace lockstep::kernels::cpu
#endif  // KERNELS_CPU_TILE_TEST_CC_

#if LS_SIMD_TARGET
HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::cpu {
namespace HWY_NAMESPACE {

void MultiplyArrays(Terms terms, int64_t rows, int64_t depth, int64_t columns,
                    const Arrays& x) {
  const Product p = {.a = x.a,
                     .a_row = x.a_row,
                     .a_step = x.a_step,
                     .b = x.b,
                     .b_step = x.b_step,
                     .c = x.c,
                     .c_row = x.c_row,
                     .add = x.add};
  switch (terms) {
    case Terms::kAll:
      return Multiply<Triangle::kNone>(rows, depth, columns, p);
    case Terms::kWithoutHead:
      return Multiply<Triangle::kHead>(rows, depth, columns, p);
    case Terms::kWithTail:
      return Multiply<Triangle::kTail>(rows, depth, columns, p);
  }
}

void CopyArray(const float* from, int64_t stride, int64_t rows, int64_t columns,
               float scale, float* to, int64_t padded) {
  CopyRows(from, stride, rows, columns, scale, to, padded);
}

void TransposeArray(const float* from, int64_t rows, int64_t columns,
                    float* to) {
  Transpose(from, rows, columns, to);
}

int64_t TileRowsMax() { return kTileRows; }

}  // namespace HWY_NAMESPACE
}  // namespace lockstep::kernels::cpu
HWY_AFTER_NAMESPACE();
#endif  // LS_SIMD_TARGET

#if HWY_ONCE
#include <cmath>
#include <limits>

namespace lockstep::kernels::cpu {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class TileTest : public KernelTest {};
LS_INSTANTIATE_KERNEL_TEST(TileTest);

// Whether row r of a product has term i, of depth + rows - 1.
bool HasTerm(Terms terms, int64_t rows, int64_t depth, int64_t r, int64_t i) {
  switch (terms) {
    case Terms::kAll:
      return i < depth;
    case Terms::kWithoutHead:
      return i >= r;
    case Terms::kWithTail:
      return i < depth + r;
  }
  return rows < 0;
}

TEST_P(TileTest, AnElementIsOneChainOfItsTerms) {
  for (const Terms terms :
       {Terms::kAll, Terms::kWithoutHead, Terms::kWithTail}) {
    for (int64_t rows = 1; rows <= LS_DISPATCH(TileRowsMax)(); ++rows) {
      for (const int64_t columns : {1, 7, 8, 9, 16, 40, 63, 64, 67, 128, 131}) {
        const int64_t depth = columns % 5 + 1;
        const int64_t steps = depth + rows - 1;
        const int64_t b_step = (columns + 15) / 16 * 16;
        for (const bool add : {false, true}) {
          for (const bool a_is_transposed : {false, true}) {
            // Terms that a row lacks are NaN, and so is what must not count of
            // the old C.
            std::vector<float> a = RandomFloats(1, rows * steps);
            const int64_t a_row = a_is_transposed ? 1 : steps;
            const int64_t a_step = a_is_transposed ? rows : 1;
            for (int64_t r = 0; r < rows; ++r) {
              for (int64_t i = 0; i < steps; ++i) {
                if (HasTerm(terms, rows, depth, r, i)) continue;
                a[r * a_row + i * a_step] = kNan;
              }
            }
            const std::vector<float> b = RandomFloats(2, steps * b_step);
            const int64_t c_row = columns + 3;
            std::vector<float> c = RandomFloats(3, rows * c_row);
            std::vector<float> expected = c;
            for (int64_t r = 0; r < rows; ++r) {
              for (int64_t j = 0; j < columns; ++j) {
                float sum = add ? c[r * c_row + j] : 0;
                for (int64_t i = 0; i < steps; ++i) {
                  if (!HasTerm(terms, rows, depth, r, i)) continue;
                  sum = std::fma(a[r * a_row + i * a_step], b[i * b_step + j],
                                 sum);
                }
                expected[r * c_row + j] = sum;
                if (!add) c[r * c_row + j] = kNan;
              }
            }
            Unaligned<float> ua(a, 1), ub(b, 3), uc(c, 2);

            LS_DISPATCH(MultiplyArrays)
            (terms, rows, depth, columns,
             {ua.data(), a_row, a_step, ub.data(), b_step, uc.data(), c_row,
              add});

            ASSERT_TRUE(BitEqual(uc.values(), expected))
                << static_cast<int>(terms) << " " << rows << " x " << columns;
          }
        }
      }
    }
  }
}

TEST_P(TileTest, ADepthOfNothingLeavesAnEmptySum) {
  std::vector<float> c = {1, 2, 3};
  const float nothing[16] = {};
  LS_DISPATCH(MultiplyArrays)
  (Terms::kAll, 1, 0, 3, {nothing, 0, 0, nothing, 0, c.data(), 3, true});
  EXPECT_EQ(c, (std::vector<float>{1, 2, 3}));

  LS_DISPATCH(MultiplyArrays)
  (Terms::kAll, 1, 0, 2, {nothing, 0, 0, nothing, 0, c.data(), 3, false});
  EXPECT_EQ(c, (std::vector<float>{0, 0, 3}));
}

TEST_P(TileTest, CopiesAreScaledAndPaddedWithZeros) {
  for (const int64_t columns : {1, 5, 8, 15, 16, 17, 80}) {
    const int64_t rows = 3, stride = columns + 2, padded = 96;
    const std::vector<float> from = RandomFloats(1, rows * stride - 2);
    Unaligned<float> in(from, 1);
    Unaligned<float> out(std::vector<float>(rows * padded, kNan), 3);

    LS_DISPATCH(CopyArray)
    (in.data(), stride, rows, columns, 0.5f, out.data(), padded);

    const std::vector<float> copy = out.values();
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < padded; ++c) {
        ASSERT_EQ(copy[r * padded + c],
                  c < columns ? from[r * stride + c] / 2 : 0)
            << r << " " << c;
      }
    }
  }
}

TEST_P(TileTest, TransposeSwapsRowsAndColumns) {
  const int64_t rows = 64, columns = 20;
  const std::vector<float> from = RandomFloats(1, rows * columns);
  Unaligned<float> in(from, 1);
  Unaligned<float> out(std::vector<float>(rows * columns, kNan), 3);

  LS_DISPATCH(TransposeArray)(in.data(), rows, columns, out.data());

  const std::vector<float> transposed = out.values();
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      ASSERT_EQ(transposed[c * rows + r], from[r * columns + c]);
    }
  }
}

}  // namespace
}  // namespace lockstep::kernels::cpu
#endif  // HWY_ONCE
