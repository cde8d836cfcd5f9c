#include "coordinator/core/straggler.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>

#include "common/check.h"

namespace lockstep {
namespace {

constexpr std::array<absl::string_view, 4> kPhases = {"data_wait", "forward",
                                                      "backward", "update"};

// The four phases, and last their sum.
constexpr size_t kSum = kPhases.size();
constexpr size_t kValues = kSum + 1;

// The mean of the two middle ones of an even number; nothing of nothing.
std::optional<absl::Duration> Median(std::vector<absl::Duration> values) {
  if (values.empty()) return std::nullopt;
  const auto middle = values.begin() + values.size() / 2;
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  const absl::Duration below = *std::max_element(values.begin(), middle);
  return below + (*middle - below) / 2;
}

}  // namespace

std::vector<RankScore> ScoreRanks(const std::vector<RankStep>& steps, int world,
                                  double threshold) {
  LS_CHECK(threshold > 1);
  // Per rank and value, what each step says.
  std::vector<std::array<std::vector<absl::Duration>, kValues>> samples(world);
  for (const RankStep& step : steps) {
    LS_CHECK(step.rank >= 0 && step.rank < world);
    if (step.micro_batch_count <= 0) continue;
    const std::array<absl::Duration, kValues> parts = {
        step.data_wait, step.forward, step.backward, step.update,
        step.data_wait + step.forward + step.backward + step.update};
    for (size_t i = 0; i < kValues; ++i) {
      samples[step.rank][i].push_back(parts[i] / step.micro_batch_count);
    }
  }

  std::vector<std::array<std::optional<absl::Duration>, kValues>> own(world);
  for (int rank = 0; rank < world; ++rank) {
    for (size_t i = 0; i < kValues; ++i) {
      own[rank][i] = Median(samples[rank][i]);
    }
  }
  auto median_of_others = [&](int rank, size_t value) {
    std::vector<absl::Duration> others;
    for (int other = 0; other < world; ++other) {
      if (other != rank && own[other][value].has_value()) {
        others.push_back(*own[other][value]);
      }
    }
    return Median(std::move(others));
  };

  std::vector<RankScore> scores(world);
  for (int rank = 0; rank < world; ++rank) {
    RankScore& score = scores[rank];
    score.step_count = static_cast<int>(samples[rank][kSum].size());
    score.compute_per_micro_batch =
        own[rank][kSum].value_or(absl::ZeroDuration());
    score.median_of_others =
        median_of_others(rank, kSum).value_or(absl::ZeroDuration());
    if (score.compute_per_micro_batch <= absl::ZeroDuration() ||
        score.median_of_others <= absl::ZeroDuration()) {
      continue;
    }
    score.score = absl::FDivDuration(score.compute_per_micro_batch,
                                     score.median_of_others);
    score.straggler = score.score >= threshold;
    if (!score.straggler) continue;
    absl::Duration most = -absl::InfiniteDuration();
    for (size_t i = 0; i < kPhases.size(); ++i) {
      const absl::Duration beyond = *own[rank][i] - *median_of_others(rank, i);
      if (beyond > most) {
        most = beyond;
        score.slow_phase = kPhases[i];
      }
    }
  }
  return scores;
}

}  // namespace lockstep
