// Sums of losses that do not depend on how micro-batches are split over ranks.
//
// A micro-batch's loss, in nats, is rounded once to a multiple of 2^-32 and
// added as an integer, in training and in evaluation.
#ifndef WORKER_PARALLEL_EXACT_LOSS_H_
#define WORKER_PARALLEL_EXACT_LOSS_H_

#include <array>
#include <cstdint>

#include "absl/numeric/int128.h"
#include "absl/status/statusor.h"
#include "common/commit_words.h"
#include "worker/comm/comm_thread.h"
#include "worker/model/decoder.h"

namespace lockstep {

// A sum of micro-batches' losses, of this rank or of all.
struct ExactLoss {
  absl::int128 units = 0;        // Nats x 2^32.
  int64_t token_count = 0;       // Over which the sum goes.
  int64_t not_finite_count = 0;  // Micro-batches whose loss is no number; left
                                 // out of `units`.

  void Add(const LossSum& loss);

  // Nats a token; NaN when a loss was not finite or no token counts.
  double mean() const;

  friend bool operator==(const ExactLoss&, const ExactLoss&) = default;
};

// As integers of which sums over up to 2^31 ranks do not overflow, for an
// all-reduce.
using ExactLossWords = std::array<int64_t, kExactLossWordCount>;
ExactLossWords ToWords(const ExactLoss& loss);
ExactLoss FromWords(const ExactLossWords& sum);

// The sum of all ranks' losses, on every rank.  A collective: every rank calls
// it, whatever it has to add.
//
// Errors: the communicator's.
absl::StatusOr<ExactLoss> SumOverRanks(CommThread& comm, const ExactLoss& mine);

}  // namespace lockstep

#endif  // WORKER_PARALLEL_EXACT_LOSS_H_
