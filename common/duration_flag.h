// Durations as command lines write them.
#ifndef COMMON_DURATION_FLAG_H_
#define COMMON_DURATION_FLAG_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace lockstep {

// Reads "500ms", "10s", "1m30s": more than nothing, and at most a year, since
// what is longer overflows clocks.
//
// Errors:
//   InvalidArgument: it is no such duration, as a number without a unit.
absl::StatusOr<absl::Duration> ParseDurationFlag(absl::string_view text);

}  // namespace lockstep

#endif  // COMMON_DURATION_FLAG_H_
