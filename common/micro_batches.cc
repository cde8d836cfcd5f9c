#include "common/micro_batches.h"

#include <algorithm>

#include "common/check.h"

namespace lockstep {

MicroBatchRange MicroBatchesOf(int64_t micro_batch_count, int rank, int world) {
  LS_CHECK(micro_batch_count >= 0);
  LS_CHECK(0 <= rank && rank < world);
  const int64_t each = micro_batch_count / world;
  const int64_t longer_ranks = micro_batch_count % world;
  return {rank * each + std::min<int64_t>(rank, longer_ranks),
          each + (rank < longer_ranks ? 1 : 0)};
}

}  // namespace lockstep
