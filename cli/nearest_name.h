// Finds what a misspelt name was meant to be.
#ifndef CLI_NEAREST_NAME_H_
#define CLI_NEAREST_NAME_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace lockstep::cli {

// The least number of insertions, deletions, substitutions and swaps of
// neighbours that turn `a` into `b`, in letters without regard to case.  No
// letter takes part in two of them.
int EditDistance(absl::string_view a, absl::string_view b);

// Those of `names` that `word` is likely to have meant: the ones at the least
// distance, if that is at most a third of the word; else those that contain the
// word or are contained in it (from four letters on).  At most three, in the
// order of `names`; none if nothing is near.
std::vector<std::string> NearestNames(absl::string_view word,
                                      const std::vector<std::string>& names);

// "a", "a or b", "a, b or c".
std::string JoinWithOr(const std::vector<std::string>& words);

}  // namespace lockstep::cli

#endif  // CLI_NEAREST_NAME_H_
