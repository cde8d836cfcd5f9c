#include "common/schedule.h"

#include <cmath>
#include <string>

#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/portable_math.h"
#include "common/status.h"

namespace lockstep {
namespace {

constexpr int64_t kTokensMax = int64_t{1} << 60;
constexpr int64_t kDimensionMax = int64_t{1} << 20;
constexpr int64_t kSamplesMax = int64_t{1} << 62;
constexpr double kEpochsMax = 1e6;

absl::Status InRange(const char* name, int64_t value, int64_t max) {
  if (1 <= value && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": expected 1 to ", max, ", got ", value));
}

// ceil(amount / per_step), checked.
absl::StatusOr<int64_t> WholeSteps(absl::int128 amount, int64_t per_step,
                                   const std::string& what) {
  const absl::int128 steps = (amount + (per_step - 1)) / per_step;
  if (steps > kStepCountMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, ": at ", per_step, " a step this takes more than ", kStepCountMax,
        " steps; give less, or a larger batch.global_batch_size"));
  }
  return static_cast<int64_t>(steps);
}

// At least one: `doubt` is smaller than any part of a sample.
absl::int128 SamplesOf(double epochs, int64_t sample_count) {
  const double whole = std::floor(epochs);
  const double fraction = epochs - whole;  // Exact.
  const double part = fraction * static_cast<double>(sample_count);
  // `epochs` is off by at most 2^-53 of itself from the decimal that was
  // written, and so is the product by its rounding: twice their sum is taken
  // for nothing.
  const double doubt = epochs * static_cast<double>(sample_count) * 0x1p-51;
  const double nearest = std::round(part);
  const double samples =
      std::fabs(part - nearest) <= doubt ? nearest : std::ceil(part);
  return absl::int128(static_cast<int64_t>(whole)) * sample_count +
         absl::int128(samples);
}

}  // namespace

double LearningRate(const LearningRateSchedule& s, int64_t step) {
  LS_CHECK(step >= 0);
  if (step < s.warmup_steps) {
    return s.peak * static_cast<double>(step + 1) /
           static_cast<double>(s.warmup_steps);
  }
  if (s.decay == Decay::kConstant) return s.peak;
  if (step >= s.max_steps) return s.minimum;
  const double r = static_cast<double>(step - s.warmup_steps) /
                   static_cast<double>(s.max_steps - s.warmup_steps);
  const double share =
      s.decay == Decay::kLinear ? 1 - r : 0.5 * (1 + PortableCosPi(r));
  return s.minimum + (s.peak - s.minimum) * share;
}

absl::StatusOr<int64_t> ResolveStepCount(const TrainingLength& length,
                                         const StepShape& shape,
                                         int64_t sample_count) {
  RETURN_IF_ERROR(InRange("batch.global_batch_size", shape.global_batch_size,
                          kDimensionMax));
  RETURN_IF_ERROR(
      InRange("data.sequence_length", shape.sequence_length, kDimensionMax));
  if (const auto* steps = std::get_if<TrainSteps>(&length)) {
    RETURN_IF_ERROR(InRange("schedule.max_steps", steps->count, kStepCountMax));
    return steps->count;
  }
  if (const auto* tokens = std::get_if<TrainTokens>(&length)) {
    RETURN_IF_ERROR(InRange("schedule.max_tokens", tokens->count, kTokensMax));
    return WholeSteps(tokens->count, shape.token_count(),
                      absl::StrCat("schedule.max_tokens=", tokens->count));
  }
  const double epochs = std::get<TrainEpochs>(length).count;
  if (!(epochs > 0 && epochs <= kEpochsMax)) {
    return absl::InvalidArgumentError(
        absl::StrCat("schedule.epochs: expected above 0, to ", kEpochsMax,
                     ", got ", epochs));
  }
  RETURN_IF_ERROR(InRange("training samples", sample_count, kSamplesMax));
  return WholeSteps(SamplesOf(epochs, sample_count), shape.global_batch_size,
                    absl::StrCat("schedule.epochs=", epochs, " of ",
                                 sample_count, " samples"));
}

}  // namespace lockstep
