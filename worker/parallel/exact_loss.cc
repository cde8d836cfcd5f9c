#include "worker/parallel/exact_loss.h"

#include <cmath>
#include <limits>

#include "common/status.h"

namespace lockstep {
namespace {

constexpr double kUnitsPerNat = 0x1p32;

// Beyond this a loss is as good as infinite, and units could overflow.
constexpr double kNatsMax = 0x1p40;

}  // namespace

void ExactLoss::Add(const LossSum& loss) {
  token_count += loss.token_count;
  if (!(std::abs(loss.nats) < kNatsMax)) {
    ++not_finite_count;
    return;
  }
  // The product is exact, then one rounding, ties to even.
  units += absl::int128(std::nearbyint(loss.nats * kUnitsPerNat));
}

double ExactLoss::mean() const {
  if (not_finite_count > 0 || token_count == 0) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  return static_cast<double>(units) / kUnitsPerNat /
         static_cast<double>(token_count);
}

ExactLossWords ToWords(const ExactLoss& loss) {
  // Two's complement: only the highest word carries the sign.
  constexpr int64_t kMask = 0xffffffff;
  const auto low = static_cast<int64_t>(absl::Int128Low64(loss.units));
  return {low & kMask, (low >> 32) & kMask, absl::Int128High64(loss.units),
          loss.token_count, loss.not_finite_count};
}

ExactLoss FromWords(const ExactLossWords& sum) {
  return {.units = absl::int128(sum[0]) + (absl::int128(sum[1]) << 32) +
                   (absl::int128(sum[2]) << 64),
          .token_count = sum[3],
          .not_finite_count = sum[4]};
}

absl::StatusOr<ExactLoss> SumOverRanks(CommThread& comm,
                                       const ExactLoss& mine) {
  ExactLossWords words = ToWords(mine);
  RETURN_IF_ERROR(comm.Run([&words](Communicator& c) {
    return c.AllReduceSum(words.data(), kExactLossWordCount);
  }));
  return FromWords(words);
}

}  // namespace lockstep
