// In which unit a tensor's gradient is summed exactly.
//
// A contribution is rounded to an integer multiple of 2^exponent (see
// kernels/exact_sum.h).  The exponent is kept for each tensor and follows the
// size of its gradient:
//
//   exponent = p - (29 - ceil(log2(M) / 2))
//
// where M is the micro-batches of a step, and 2^p the power of two above the
// largest element of the tensor's reduced gradient; of the last four steps, the
// smallest such p, so that a spike does not coarsen what comes after it.  With
// M = 8 the unit is 27 bits below the largest element.  Before there is such a
// step, and after one that was skipped or whose gradient was zero:
//
//   exponent = -44 + ceil(log2(nominal tokens of a step))
//
// Everything here is a function of the job and of the training state, never of
// how the work is split over ranks.
#ifndef WORKER_PARALLEL_EXACT_UNIT_H_
#define WORKER_PARALLEL_EXACT_UNIT_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace lockstep {

// Of a job; never changes.
struct ExactScale {
  int64_t micro_batch_count = 1;    // Of a step, all ranks together: M.
  int64_t nominal_token_count = 1;  // Of a step: sequences x sequence length.

  friend bool operator==(const ExactScale&, const ExactScale&) = default;
};

// Errors:
//   InvalidArgument: micro_batch_count is not 1 to 2^30, or nominal_token_count
//     not 1 to 2^50.
absl::Status ValidateExactScale(const ExactScale& scale);

// What a tensor's unit follows.  Plain data: part of the training state, saved
// with it.
struct UnitHistory {
  // p of the last `count` steps, newest last; the rest is 0.
  static constexpr int kLengthMax = 4;
  std::array<int32_t, kLengthMax> powers = {};
  int32_t count = 0;

  friend bool operator==(const UnitHistory&, const UnitHistory&) = default;
};

// The exponent of the next step's unit.
int UnitExponent(const UnitHistory& history, const ExactScale& scale);

// All tensors' exponents.
std::vector<int> UnitExponents(absl::Span<const UnitHistory> histories,
                               const ExactScale& scale);

// Takes in a step whose reduced gradient had `max_sum` as its largest |integer|
// in units of 2^exponent.
void AdvanceUnit(UnitHistory& history, int exponent, int64_t max_sum);

// Takes in a step that was skipped.
void ResetUnit(UnitHistory& history);

// A contribution of this size or more, as an integer, is an overflow: 2^61 / M,
// M rounded up to a power of two.  A tensor with two contributions a
// micro-batch stays below 2^62.
int64_t OverflowLimit(const ExactScale& scale);

}  // namespace lockstep

#endif  // WORKER_PARALLEL_EXACT_UNIT_H_
