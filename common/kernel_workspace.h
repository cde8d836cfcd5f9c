// Elements of float32 that kernels on a CPU want beside their arguments: here,
// since the plan of a job's memory needs them where there are no kernels.
#ifndef COMMON_KERNEL_WORKSPACE_H_
#define COMMON_KERNEL_WORKSPACE_H_

#include <algorithm>
#include <cstdint>

namespace lockstep::workspace {

// Rows are summed in blocks of so many, each into a row of the workspace.
inline constexpr int64_t kRowSumsBlock = 64;

inline constexpr int64_t RowSumsBlockCount(int64_t row_count) {
  return (row_count + kRowSumsBlock - 1) / kRowSumsBlock;
}

// For rows of `width` sums.
inline constexpr int64_t RowSums(int64_t row_count, int64_t width) {
  return RowSumsBlockCount(row_count) * width;
}

inline constexpr int64_t LayerNorm(int64_t row_count, int64_t width) {
  return RowSums(row_count, 3 * width);
}
inline constexpr int64_t RmsNorm(int64_t row_count, int64_t width) {
  return RowSums(row_count, 2 * width);
}
inline constexpr int64_t BiasGelu(int64_t row_count, int64_t width) {
  return RowSums(row_count, width);
}
inline constexpr int64_t ColumnSums(int64_t row_count, int64_t width) {
  return RowSums(row_count, width);
}

// Of one thread's attention; see kernels/cpu/attention.cc.
struct Attention {
  // Queries at a time.
  static constexpr int64_t kQueryBlock = 64;

  // Keys that a block of queries meets at a time in backward; a multiple of
  // kQueryBlock.
  static constexpr int64_t kKeyBlock = 256;

  Attention(int64_t sequence_length, int64_t head_width)
      : padded_width((head_width + 15) / 16 * 16),
        head(sequence_length * padded_width),
        tile(kQueryBlock * padded_width),
        all_scores(kQueryBlock * sequence_length),
        scores(kQueryBlock * std::min(kKeyBlock, sequence_length)) {}

  const int64_t padded_width;  // Whole vectors.
  const int64_t head;          // A head's keys or values.
  const int64_t tile;          // A block of queries.
  const int64_t all_scores;    // Of a block of queries with all keys.
  const int64_t scores;        // With those of kKeyBlock.

  // Keys, values and queries twice; then forward's or backward's.
  int64_t count() const {
    return 2 * head + 2 * tile + std::max(all_scores, 2 * scores + 2 * tile);
  }
};

}  // namespace lockstep::workspace

#endif  // COMMON_KERNEL_WORKSPACE_H_
