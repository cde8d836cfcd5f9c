// Words of messages for people.
#ifndef COORDINATOR_CORE_PHRASES_H_
#define COORDINATOR_CORE_PHRASES_H_

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lockstep {

// "a, b, c"; of many only the first ones, and how many more.
inline std::string JoinNames(const std::vector<std::string>& names) {
  constexpr size_t kNamesMax = 8;
  if (names.size() <= kNamesMax) return absl::StrJoin(names, ", ");
  return absl::StrCat(
      absl::StrJoin(names.begin(), names.begin() + kNamesMax, ", "), " and ",
      names.size() - kNamesMax, " more");
}

// "1 worker", "2 workers".
inline std::string CountOf(int64_t n, absl::string_view noun) {
  return absl::StrCat(n, " ", noun, n == 1 ? "" : "s");
}

}  // namespace lockstep

#endif  // COORDINATOR_CORE_PHRASES_H_
