#include "common/duration_flag.h"

#include "absl/strings/str_cat.h"
#include "common/printable.h"

namespace lockstep {

absl::StatusOr<absl::Duration> ParseDurationFlag(absl::string_view text) {
  absl::Duration duration;
  if (absl::ParseDuration(text, &duration) && duration > absl::ZeroDuration() &&
      duration <= absl::Hours(24 * 365)) {
    return duration;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "expected a duration above 0, such as 500ms, 10s or 1m30s, got ",
      Quoted(text)));
}

}  // namespace lockstep
