#include "cli/text.h"

#include <cmath>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/printable.h"

namespace lockstep::cli {
namespace {

bool StartsCharacter(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
}

}  // namespace

absl::Duration ToDuration(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) +
         absl::Nanoseconds(duration.nanos());
}

double ToMilliseconds(const google::protobuf::Duration& duration) {
  return static_cast<double>(duration.seconds()) * 1e3 +
         static_cast<double>(duration.nanos()) / 1e6;
}

std::string TimeText(const google::protobuf::Timestamp& time) {
  if (time.seconds() == 0 && time.nanos() == 0) return "-";
  return absl::FormatTime("%Y-%m-%d %H:%M:%S",
                          absl::FromUnixSeconds(time.seconds()),
                          absl::UTCTimeZone());
}

std::string DurationText(absl::Duration duration) {
  if (duration <= absl::ZeroDuration()) return "0s";
  const int64_t s = absl::ToInt64Seconds(duration + absl::Milliseconds(500));
  if (s < 60) return absl::StrCat(s, "s");
  if (s < 3600) return absl::StrFormat("%dm%02ds", s / 60, s % 60);
  if (s < 86400) return absl::StrFormat("%dh%02dm", s / 3600, s / 60 % 60);
  return absl::StrFormat("%dd%02dh", s / 86400, s / 3600 % 24);
}

std::string CountText(double count) {
  if (!std::isfinite(count)) return DoubleText(count);
  if (count < 999.5) return absl::StrFormat("%.0f", count);
  const char* unit = "kMGTPE";
  count /= 1000;
  while (count >= 999.5 && unit[1] != '\0') {
    count /= 1000;
    ++unit;
  }
  return absl::StrCat(ThreeDigits(count), std::string(1, *unit));
}

std::string OneLine(absl::string_view text) {
  if (IsPrintableUtf8(text)) return std::string(text);
  return absl::CEscape(text);
}

int DisplayWidth(absl::string_view text) {
  int width = 0;
  for (const char c : text) width += StartsCharacter(c) ? 1 : 0;
  return width;
}

std::string Fit(absl::string_view text, int width) {
  if (DisplayWidth(text) <= width) return std::string(text);
  std::string fitted;
  int column = 0;
  for (const char c : text) {
    if (StartsCharacter(c) && ++column >= width) break;
    fitted.push_back(c);
  }
  if (width > 0) fitted.push_back('~');
  return fitted;
}

std::string WithPrefix(absl::string_view prefix, absl::string_view name) {
  if (absl::StartsWith(name, prefix)) return std::string(name);
  return absl::StrCat(prefix, name);
}

std::string WithoutPrefix(absl::string_view prefix, absl::string_view name) {
  if (absl::StartsWith(name, prefix)) name.remove_prefix(prefix.size());
  return std::string(name);
}

}  // namespace lockstep::cli
