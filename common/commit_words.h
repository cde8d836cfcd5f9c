// How long the two all-reduces are that commit a step, in 64-bit integers.
#ifndef COMMON_COMMIT_WORDS_H_
#define COMMON_COMMIT_WORDS_H_

#include <cstdint>

namespace lockstep {

// What a sum of squares takes.
inline constexpr int kSquareLimbCount = 6;

// What a loss takes.
inline constexpr int kExactLossWordCount = 5;

// Of the maxima, before one for each tensor.
enum CommitMaximaWord {
  kLossNotFinite,
  kStop,
  kCheckpoint,
  kMinusPlanVersion,
  kMinusWritten,
  kCheckpointFailed,
  kMaximaWordCount,
};

// Of the sums, before the squares of each tensor: the loss's, then this.
inline constexpr int kMicroBatchesWord = kExactLossWordCount;
inline constexpr int kSumsWordCount = kExactLossWordCount + 1;

inline constexpr int64_t CommitMaximaWords(int64_t tensor_count) {
  return kMaximaWordCount + tensor_count;
}
inline constexpr int64_t CommitSumsWords(int64_t tensor_count) {
  return kSumsWordCount + tensor_count * kSquareLimbCount;
}

}  // namespace lockstep

#endif  // COMMON_COMMIT_WORDS_H_
