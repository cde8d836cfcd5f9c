#include "cli/nearest_name.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace lockstep::cli {
namespace {

// No name is longer; bounds the work on a word from outside.
constexpr size_t kWordBytesMax = 100;
constexpr size_t kNamesMax = 3;

}  // namespace

int EditDistance(absl::string_view a, absl::string_view b) {
  // Row i of the table holds the distances of a's first i letters to each
  // prefix of b; a swap looks two rows back.
  std::vector<int> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = static_cast<int>(j);
  const auto same = [&](size_t i, size_t j) {
    return absl::ascii_tolower(a[i]) == absl::ascii_tolower(b[j]);
  };
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1,
                         last[j - 1] + (same(i - 1, j - 1) ? 0 : 1)});
      if (i > 1 && j > 1 && same(i - 1, j - 2) && same(i - 2, j - 1)) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

std::vector<std::string> NearestNames(absl::string_view word,
                                      const std::vector<std::string>& names) {
  std::vector<std::string> nearest;
  if (word.empty() || word.size() > kWordBytesMax) return nearest;
  int least = std::max<int>(1, static_cast<int>(word.size()) / 3);
  for (const std::string& name : names) {
    const int distance = EditDistance(word, name);
    if (distance > least) continue;
    if (distance < least) nearest.clear();
    least = distance;
    nearest.push_back(name);
  }
  if (nearest.empty() && word.size() >= 4) {
    const std::string lower = absl::AsciiStrToLower(word);
    for (const std::string& name : names) {
      const std::string other = absl::AsciiStrToLower(name);
      if (absl::StrContains(other, lower) ||
          (other.size() >= 4 && absl::StrContains(lower, other))) {
        nearest.push_back(name);
      }
    }
  }
  if (nearest.size() > kNamesMax) nearest.resize(kNamesMax);
  return nearest;
}

std::string JoinWithOr(const std::vector<std::string>& words) {
  std::string joined;
  for (size_t i = 0; i < words.size(); ++i) {
    absl::StrAppend(&joined,
                    i == 0                  ? ""
                    : i + 1 == words.size() ? " or "
                                            : ", ",
                    words[i]);
  }
  return joined;
}

}  // namespace lockstep::cli
