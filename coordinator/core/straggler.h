// Which rank of a job is slower than the others, and at what.
//
// A collective makes every rank's step equally long, so ranks are compared by
// their own work: of each step, data wait + forward + backward + update,
// divided by the micro-batches that the rank ran in it; of a window of steps,
// the median.  A rank's score is its value divided by the median of the other
// ranks' values.
#ifndef COORDINATOR_CORE_STRAGGLER_H_
#define COORDINATOR_CORE_STRAGGLER_H_

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace lockstep {

// What one rank did in one step.
struct RankStep {
  int rank = 0;
  int64_t micro_batch_count = 0;
  absl::Duration data_wait;
  absl::Duration forward;
  absl::Duration backward;
  absl::Duration update;
};

struct RankScore {
  // Steps of the window in which it ran a micro-batch.
  int step_count = 0;

  // Zero when step_count is 0.
  absl::Duration compute_per_micro_batch;

  // Over the other ranks that ran a micro-batch.  Zero if there is none.
  absl::Duration median_of_others;

  // The first divided by the second; 1 when either is missing, or zero.
  double score = 1;

  bool straggler = false;

  // Of a straggler: "data_wait", "forward", "backward" or "update", by what its
  // median of that part per micro-batch exceeds the others' median most; of
  // equals the first.  Else empty.
  absl::string_view slow_phase;
};

// One score for each of `world` ranks.  `steps` in any order, ranks below
// `world`; steps without micro-batches say nothing of a rank.  A rank is a
// straggler when its score is at least `threshold`, which is above 1.
std::vector<RankScore> ScoreRanks(const std::vector<RankStep>& steps, int world,
                                  double threshold);

}  // namespace lockstep

#endif  // COORDINATOR_CORE_STRAGGLER_H_
