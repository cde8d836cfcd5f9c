// How the micro-batches of a step are divided over ranks.
#ifndef COMMON_MICRO_BATCHES_H_
#define COMMON_MICRO_BATCHES_H_

#include <cstdint>

namespace lockstep {

// Micro-batches [first, first + count) of a step.
struct MicroBatchRange {
  int64_t first = 0;
  int64_t count = 0;  // 0: the rank only takes part in collectives.
  friend bool operator==(const MicroBatchRange&,
                         const MicroBatchRange&) = default;
};

// Rank `rank`'s part of a step of `micro_batch_count` micro-batches: contiguous
// ranges in order of rank, as even as can be; the first
// micro_batch_count % world ranks have one more.  Ranks beyond the last
// micro-batch have none.  micro_batch_count >= 0, 0 <= rank < world.
MicroBatchRange MicroBatchesOf(int64_t micro_batch_count, int rank, int world);

}  // namespace lockstep

#endif  // COMMON_MICRO_BATCHES_H_
