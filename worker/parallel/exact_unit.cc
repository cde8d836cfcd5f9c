#include "worker/parallel/exact_unit.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace lockstep {
namespace {

// ceil(log2(n)), n >= 1.
int CeilLog2(int64_t n) { return std::bit_width(static_cast<uint64_t>(n - 1)); }

// How many bits the unit lies below the power above the largest element.
int UnitBits(int64_t micro_batch_count) {
  // ceil(log2(M) / 2) is the least k with 4^k >= M.
  int k = 0;
  while (int64_t{1} << (2 * k) < micro_batch_count) ++k;
  return 29 - k;
}

}  // namespace

absl::Status ValidateExactScale(const ExactScale& scale) {
  constexpr int64_t kMicroBatchCountMax = int64_t{1} << 30;
  constexpr int64_t kTokenCountMax = int64_t{1} << 50;
  if (scale.micro_batch_count < 1 ||
      scale.micro_batch_count > kMicroBatchCountMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("micro-batches of a step: expected 1 to ",
                     kMicroBatchCountMax, ", got ", scale.micro_batch_count));
  }
  if (scale.nominal_token_count < 1 ||
      scale.nominal_token_count > kTokenCountMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokens of a step: expected 1 to ", kTokenCountMax,
                     ", got ", scale.nominal_token_count));
  }
  return absl::OkStatus();
}

int UnitExponent(const UnitHistory& history, const ExactScale& scale) {
  LS_CHECK(0 <= history.count && history.count <= UnitHistory::kLengthMax);
  if (history.count == 0) return -44 + CeilLog2(scale.nominal_token_count);
  const auto first = history.powers.begin();
  return *std::min_element(first, first + history.count) -
         UnitBits(scale.micro_batch_count);
}

std::vector<int> UnitExponents(absl::Span<const UnitHistory> histories,
                               const ExactScale& scale) {
  std::vector<int> exponents;
  exponents.reserve(histories.size());
  for (const UnitHistory& h : histories) {
    exponents.push_back(UnitExponent(h, scale));
  }
  return exponents;
}

void AdvanceUnit(UnitHistory& history, int exponent, int64_t max_sum) {
  LS_CHECK(max_sum >= 0);
  if (max_sum == 0) return ResetUnit(history);
  auto& powers = history.powers;
  if (history.count == UnitHistory::kLengthMax) {
    std::rotate(powers.begin(), powers.begin() + 1, powers.end());
    --history.count;
  }
  powers[history.count++] =
      exponent + std::bit_width(static_cast<uint64_t>(max_sum));
}

void ResetUnit(UnitHistory& history) { history = {}; }

int64_t OverflowLimit(const ExactScale& scale) {
  return int64_t{1} << (61 - CeilLog2(scale.micro_batch_count));
}

}  // namespace lockstep
