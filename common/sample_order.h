// Which sample stands where in the order of training.
//
// Training consumes positions 0, 1, 2, ...: position p of step s is the global
// index s x global batch + p, whoever works on it.  Global index g falls into
// epoch g / sample_count; an epoch's end may lie inside a step.  Within an
// epoch every sample comes exactly once, in an order that is a permutation
// keyed by seed and epoch: a Feistel network over Philox on the least even
// number of bits that holds the samples, walked until it lands on a sample
// (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002).
// So any position's sample is known at once: no table, no state, no replay.
#ifndef COMMON_SAMPLE_ORDER_H_
#define COMMON_SAMPLE_ORDER_H_

#include <cstdint>

namespace lockstep {

enum class SampleOrder {
  kPermuted,    // A fresh order in every epoch.
  kSequential,  // Sample 0, 1, 2, ... in every epoch.
};

// The most samples a data set may have, and positions a job may consume.
inline constexpr int64_t kSampleCountMax = int64_t{1} << 62;

// The sample, in [0, sample_count), at `global_index`.  sample_count: 1 to
// 2^62; global_index: 0 to 2^62 - 1.  Takes constant memory and, on average,
// less than 64 Philox blocks.
int64_t SampleIndex(int64_t seed, SampleOrder order, int64_t sample_count,
                    int64_t global_index);

}  // namespace lockstep

#endif  // COMMON_SAMPLE_ORDER_H_
