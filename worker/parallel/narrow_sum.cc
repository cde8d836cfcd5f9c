#include "worker/parallel/narrow_sum.h"

#include <algorithm>

namespace lockstep {

int64_t LargestMagnitude(const int64_t* values, int64_t n) {
  int64_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    largest = std::max(largest, values[i] < 0 ? -values[i] : values[i]);
  }
  return largest;
}

// Unsigned below, where wrapping is defined.

void PackNarrow(int64_t* values, int64_t n) {
  for (int64_t i = 0; i < n / 2; ++i) {
    const auto low = static_cast<uint64_t>(values[2 * i]);
    const auto high = static_cast<uint64_t>(values[2 * i + 1]);
    values[i] = static_cast<int64_t>(low + (high << 32));
  }
  if (n % 2 != 0) values[n / 2] = values[n - 1];
}

void UnpackNarrow(int64_t* words, int64_t n) {
  const auto low_of = [](uint64_t word) {
    return static_cast<int64_t>(static_cast<int32_t>(word));
  };
  if (n % 2 != 0) {
    words[n - 1] = low_of(static_cast<uint64_t>(words[n / 2]));
  }
  for (int64_t i = n / 2 - 1; i >= 0; --i) {
    const auto word = static_cast<uint64_t>(words[i]);
    const int64_t low = low_of(word);
    const uint64_t high = (word - static_cast<uint64_t>(low)) >> 32;
    words[2 * i] = low;
    words[2 * i + 1] = low_of(high);
  }
}

}  // namespace lockstep
