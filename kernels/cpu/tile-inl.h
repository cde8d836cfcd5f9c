// Products of small matrices that stay in a cache, compiled once per
// instruction set.
//
// What a library does to operands before it multiplies costs as much as the
// product itself where that is 64 deep and wide.  Here the rows of A are read
// as single elements, so that A may lie in any order, and those of B as whole
// vectors.
//
// An element of C is one chain of fused multiply-adds, from the first term to
// the last, also over several calls: how a product is cut does not show in its
// bits.

// Highway's toggle instead of an include guard: once per target.
#if defined(KERNELS_CPU_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KERNELS_CPU_TILE_INL_H_
#undef KERNELS_CPU_TILE_INL_H_
#else
#define KERNELS_CPU_TILE_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

#if LS_SIMD_TARGET
HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::cpu {
namespace HWY_NAMESPACE {

// Rows and vectors of C that are held in registers; with the vectors of B and
// one of A, 29 of the 32 registers of AVX-512 and 15 of the 16 of AVX2.
constexpr int kTileRows = 6;
constexpr int kTileVectors = HWY_TARGET == HWY_AVX3 ? 4 : 2;

// Which rows take part in the first or last terms of a sum that grows or
// shrinks by one term from row to row, like those up to a diagonal.
enum class Triangle {
  // All rows have `depth` terms.
  kNone,
  // Row r lacks the first r of depth + rows - 1 terms.
  kHead,
  // Row r has depth + r terms.
  kTail,
};

// C (rows, columns) = or += A (rows, depth) B (depth, columns).
struct Product {
  const float* a = nullptr;
  int64_t a_row = 0;   // Between rows of A.
  int64_t a_step = 0;  // Between columns of A.
  // Rows of B are read in whole vectors.
  const float* b = nullptr;
  int64_t b_step = 0;
  float* c = nullptr;
  int64_t c_row = 0;
  bool add = false;
};

template <int kRows, int kVectors>
struct Tile {
  FloatVector sum[kRows][kVectors];

  // Adds one term to rows [begin, end); compile-time constants once the loops
  // are unrolled.
  HWY_INLINE void Step(const float* a, int64_t a_row, const float* b, int begin,
                       int end) {
    const FloatTag d;
    FloatVector row[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) row[v] = hn::LoadU(d, b + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      if (r < begin || r >= end) continue;
      const auto factor = hn::Set(d, a[r * a_row]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = hn::MulAdd(factor, row[v], sum[r][v]);
      }
    }
  }
};

template <Triangle kTriangle, int kRows, int kVectors>
HWY_NOINLINE void MultiplyTile(const Product& p, int64_t depth, int64_t begin,
                               int64_t columns) {
  const FloatTag d;
  Tile<kRows, kVectors> tile;
  float* const c = p.c + begin;
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      tile.sum[r][v] =
          p.add ? LoadPart(c + r * p.c_row + v * kLanes, columns - v * kLanes)
                : hn::Zero(d);
    }
  }
  const float* a = p.a;
  const float* b = p.b + begin;
  const int64_t a_row = p.a_row;
  const int64_t a_step = p.a_step;
  const int64_t b_step = p.b_step;
  if (kTriangle == Triangle::kHead) {
#pragma GCC unroll 8
    for (int i = 1; i < kRows; ++i) {
      tile.Step(a, a_row, b, 0, i);
      a += a_step;
      b += b_step;
    }
  }
  for (int64_t i = 0; i < depth; ++i) {
    tile.Step(a, a_row, b, 0, kRows);
    a += a_step;
    b += b_step;
  }
  if (kTriangle == Triangle::kTail) {
#pragma GCC unroll 8
    for (int i = 1; i < kRows; ++i) {
      tile.Step(a, a_row, b, i, kRows);
      a += a_step;
      b += b_step;
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      float* const at = c + r * p.c_row + v * kLanes;
      if (v + 1 < kVectors) {
        hn::StoreU(tile.sum[r][v], d, at);
      } else {
        StorePart(tile.sum[r][v], at, columns - v * kLanes);
      }
    }
  }
}

template <Triangle kTriangle, int kRows, int kVectors = kTileVectors>
HWY_INLINE void MultiplyVectors(int64_t vectors, const Product& p,
                                int64_t depth, int64_t begin, int64_t columns) {
  if constexpr (kVectors > 1) {
    if (vectors < kVectors) {
      return MultiplyVectors<kTriangle, kRows, kVectors - 1>(vectors, p, depth,
                                                             begin, columns);
    }
  }
  MultiplyTile<kTriangle, kRows, kVectors>(p, depth, begin, columns);
}

// rows: 1 to kTileRows.  depth: terms in which all rows take part.  In C
// nothing is read or written beyond `columns`.  What a row lacks is not read.
template <Triangle kTriangle, int kRows = kTileRows>
HWY_INLINE void Multiply(int64_t rows, int64_t depth, int64_t columns,
                         const Product& p) {
  if constexpr (kRows > 1) {
    if (rows < kRows) {
      return Multiply<kTriangle, kRows - 1>(rows, depth, columns, p);
    }
  }
  int64_t vectors = (columns + kLanes - 1) / kLanes;
  // In parts of about the same size: one of a single vector would wait for its
  // own sums.
  int64_t begin = 0;
  for (int64_t parts = (vectors + kTileVectors - 1) / kTileVectors; parts > 0;
       --parts) {
    const int64_t part = (vectors + parts - 1) / parts;
    MultiplyVectors<kTriangle, kRows>(part, p, depth, begin,
                                      std::min(part * kLanes, columns - begin));
    begin += part * kLanes;
    vectors -= part;
  }
}

// to (rows, padded) = from (rows, columns) times scale, and zeros behind.
// padded: a multiple of kLanes.
inline void CopyRows(const float* HWY_RESTRICT from, int64_t from_stride,
                     int64_t rows, int64_t columns, float scale,
                     float* HWY_RESTRICT to, int64_t padded) {
  const auto v_scale = hn::Set(FloatTag(), scale);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < padded; c += kLanes) {
      const auto x = c < columns
                         ? LoadPart(from + r * from_stride + c, columns - c)
                         : hn::Zero(FloatTag());
      hn::StoreU(hn::Mul(x, v_scale), FloatTag(), to + r * padded + c);
    }
  }
}

// to (columns, rows) = from (rows, columns) transposed; both multiples of 4.
inline void Transpose(const float* HWY_RESTRICT from, int64_t rows,
                      int64_t columns, float* HWY_RESTRICT to) {
  const hn::FixedTag<float, 4> d;
  const hn::Repartition<double, decltype(d)> pairs;
  for (int64_t r = 0; r < rows; r += 4) {
    for (int64_t c = 0; c < columns; c += 4) {
      const float* const at = from + r * columns + c;
      const auto r0 = hn::LoadU(d, at);
      const auto r1 = hn::LoadU(d, at + columns);
      const auto r2 = hn::LoadU(d, at + 2 * columns);
      const auto r3 = hn::LoadU(d, at + 3 * columns);
      const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(d, r0, r1));
      const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(d, r2, r3));
      const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(d, r0, r1));
      const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(d, r2, r3));
      float* const out = to + c * rows + r;
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, low01, low23)), d,
                 out);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, low01, low23)), d,
                 out + rows);
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, high01, high23)), d,
                 out + 2 * rows);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, high01, high23)), d,
                 out + 3 * rows);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lockstep::kernels::cpu
HWY_AFTER_NAMESPACE();
#endif  // LS_SIMD_TARGET

#endif  // include guard
