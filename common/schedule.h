// How long a job trains and at what learning rate: functions of the optimizer
// step and the job alone, never of workers or accumulation.
#ifndef COMMON_SCHEDULE_H_
#define COMMON_SCHEDULE_H_

#include <cstdint>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep {

enum class Decay {
  kConstant,  // Stays at the peak.
  kLinear,    // In a straight line.
  kCosine,    // As half a cosine.
};

// The most steps a job may have.
inline constexpr int64_t kStepCountMax = int64_t{1} << 40;

struct LearningRateSchedule {
  double peak = 0;     // Positive.
  double minimum = 0;  // 0 to `peak`.
  Decay decay = Decay::kCosine;
  int64_t warmup_steps = 0;  // 0 to kStepCountMax; may exceed `max_steps`.
  int64_t max_steps = 1;     // 1 to kStepCountMax.
};

// The learning rate of step `step` (the first is 0), not negative.
//
//   step < warmup_steps:  peak (step + 1) / warmup_steps
//   otherwise, with r = (step - warmup_steps) / (max_steps - warmup_steps):
//     constant            peak
//     linear              minimum + (peak - minimum) (1 - r)
//     cosine              minimum + (peak - minimum) (1 + cos(pi r)) / 2
//
// so that the minimum would be reached at step max_steps, the first that is not
// taken; from there on it stays.  The same bits on every machine.
double LearningRate(const LearningRateSchedule& schedule, int64_t step);

// How long to train, as the user said it.
struct TrainSteps {
  int64_t count = 0;  // 1 to kStepCountMax.
};
struct TrainTokens {
  int64_t count = 0;  // Predicted tokens; 1 to 2^60.
};
struct TrainEpochs {
  double count = 0;  // Passes over the training samples; above 0, to 1e6.
};
using TrainingLength = std::variant<TrainSteps, TrainTokens, TrainEpochs>;

// What a step consumes.
struct StepShape {
  int64_t global_batch_size = 0;  // Sequences; 1 to 2^20.
  int64_t sequence_length = 0;    // Predicted tokens of each; 1 to 2^20.

  int64_t token_count() const { return global_batch_size * sequence_length; }
};

// The whole number of steps that covers `length`, rounded up.  `sample_count`
// is that of the training part of the data, 1 to 2^62; only epochs need it.
//
// A fraction of an epoch is meant in decimal: a number of samples that is whole
// but for the rounding of `count` to binary counts as whole (1.1 epochs of 10
// samples are 11 samples).
//
// Errors:
//   InvalidArgument: a number is out of its range, or more than kStepCountMax
//     steps would be needed.
absl::StatusOr<int64_t> ResolveStepCount(const TrainingLength& length,
                                         const StepShape& shape,
                                         int64_t sample_count);

}  // namespace lockstep

#endif  // COMMON_SCHEDULE_H_
