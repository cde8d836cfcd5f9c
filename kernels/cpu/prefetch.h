// Brings rows of memory near before they are needed.
#ifndef KERNELS_CPU_PREFETCH_H_
#define KERNELS_CPU_PREFETCH_H_

#include <algorithm>
#include <cstdint>

#include "absl/types/span.h"

namespace lockstep::kernels::cpu {

// Rows of some arrays, fetched into the second-level cache a few at a time
// between pieces of other work: rows that are a stride apart are too far from
// each other for the processor to guess.  A row fetched in vain, or too early,
// costs its traffic and nothing else.
class RowPrefetcher {
 public:
  struct Rows {
    const float* data = nullptr;
    int64_t stride = 0;
  };

  // `work`: what all calls of Advance add up to, in any unit; by then all rows
  // are fetched.
  RowPrefetcher(int64_t row_count, int64_t width, int64_t work)
      : row_count_(row_count), width_(width), work_(work) {}

  // At most kArrays in all.
  void Add(absl::Span<const Rows> arrays) {
    for (const Rows& rows : arrays) arrays_[array_count_++] = rows;
  }

  // Some work has been done.
  void Advance(int64_t work) {
    done_ += work;
    const int64_t end = std::min(row_count_ * done_ / work_, row_count_);
    for (; row_ < end; ++row_) {
      for (int i = 0; i < array_count_; ++i) {
        const float* const row = arrays_[i].data + row_ * arrays_[i].stride;
        for (int64_t c = 0; c < width_; c += kCacheLine) {
          __builtin_prefetch(row + c, 0, 2);
        }
      }
    }
  }

 private:
  static constexpr int kArrays = 8;
  static constexpr int64_t kCacheLine = 16;  // In elements.

  const int64_t row_count_;
  const int64_t width_;
  const int64_t work_;
  Rows arrays_[kArrays];
  int array_count_ = 0;
  int64_t done_ = 0;
  int64_t row_ = 0;
};

}  // namespace lockstep::kernels::cpu

#endif  // KERNELS_CPU_PREFETCH_H_
