#include "coordinator/service/page.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/printable.h"

namespace lockstep {
namespace {

// FNV-1a: against mistakes, not against malice; a forged token only lists what
// its owner could have listed anyway.
uint64_t Fingerprint(absl::string_view text) {
  uint64_t hash = 14695981039346656037u;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  }
  return hash;
}

}  // namespace

absl::StatusOr<int> PageSize(int32_t asked, int standard, int max) {
  if (asked < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_size: expected 0 to ", max, ", got ", asked));
  }
  return asked == 0 ? standard : std::min<int>(asked, max);
}

std::string MakePageToken(absl::string_view list, absl::string_view place) {
  return absl::WebSafeBase64Escape(
      absl::StrCat(absl::Hex(Fingerprint(list), absl::kZeroPad16), ":", place));
}

absl::StatusOr<std::string> ParsePageToken(absl::string_view list,
                                           absl::string_view token) {
  if (token.empty()) return std::string();
  std::string text;
  const std::string head =
      absl::StrCat(absl::Hex(Fingerprint(list), absl::kZeroPad16), ":");
  if (!absl::WebSafeBase64Unescape(token, &text) ||
      !absl::StartsWith(text, head) || text.size() == head.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "page_token: expected the next_page_token of a page of this very list, "
        "got ",
        Quoted(token)));
  }
  return text.substr(head.size());
}

}  // namespace lockstep
