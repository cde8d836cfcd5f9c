#include "worker/checkpoint/strict_json.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "worker/data/random_access_file.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

constexpr int64_t kFileBytesMax = 64 << 20;

// The library's text without its own label: "[json.exception...] parse error
// at line 1, column 5: syntax error ..." from "syntax error" on.
absl::string_view Reason(absl::string_view what) {
  const size_t column = what.find(", column ");
  if (column == absl::string_view::npos) return what;
  const size_t colon = what.find(": ", column);
  return colon == absl::string_view::npos ? what : what.substr(colon + 2);
}

}  // namespace

absl::StatusOr<Json> ParseStrictJson(absl::string_view text,
                                     int64_t first_byte) {
  // The library takes a zero byte for the end and would not see what follows.
  if (const size_t zero = text.find('\0'); zero != absl::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("byte ", first_byte + static_cast<int64_t>(zero),
                     ": expected JSON in UTF-8: a zero byte"));
  }
  std::vector<std::set<std::string>> keys;  // Of the objects we are inside.
  std::optional<std::string> repeated;
  const auto watch = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == Json::parse_event_t::key) {
      const auto& key = value.get_ref<const std::string&>();
      if (!keys.back().insert(key).second && !repeated) repeated = key;
    }
    return true;
  };
  Json json;
  try {
    json = Json::parse(text.begin(), text.end(), watch);
  } catch (const Json::parse_error& error) {
    // `byte` counts from 1 and is the length when the end came too early.
    const int64_t byte =
        first_byte + std::max<int64_t>(static_cast<int64_t>(error.byte) - 1, 0);
    return absl::InvalidArgumentError(absl::StrCat(
        "byte ", byte, ": expected JSON in UTF-8: ", Reason(error.what())));
  }
  if (repeated) {
    return absl::InvalidArgumentError(absl::StrCat(
        "key \"", absl::Utf8SafeCEscape(*repeated), "\" comes twice"));
  }
  return json;
}

absl::StatusOr<Json> ReadStrictJsonFile(const std::string& path) {
  ASSIGN_OR_RETURN(const RandomAccessFile file, RandomAccessFile::Open(path));
  if (file.size() > kFileBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": has ", file.size(),
                                                   " bytes; expected at most ",
                                                   kFileBytesMax));
  }
  std::string text(static_cast<size_t>(file.size()), '\0');
  RETURN_IF_ERROR(file.ReadAt(0, file.size(), text.data()));
  absl::StatusOr<Json> json = ParseStrictJson(text);
  if (!json.ok()) return Annotate(json.status(), path);
  return json;
}

}  // namespace lockstep
