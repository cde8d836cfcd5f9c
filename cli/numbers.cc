#include "cli/numbers.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <string>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/printable.h"

namespace lockstep::cli {
namespace {

// A number taken apart: digits x 10^exponent, the digits without a zero at
// either end (none at all for zero).
struct Decimal {
  bool negative = false;
  std::string digits;
  int64_t exponent = 0;
};

std::optional<Decimal> Read(absl::string_view text) {
  Decimal decimal;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) {
    decimal.negative = text[0] == '-';
    text.remove_prefix(1);
  }
  if (text.size() > 1 && text[0] == '0' && absl::ascii_isdigit(text[1])) {
    return std::nullopt;
  }
  size_t at = 0;
  bool point = false;
  for (; at < text.size(); ++at) {
    if (text[at] == '.' && !point) {
      point = true;
    } else if (absl::ascii_isdigit(text[at])) {
      decimal.digits.push_back(text[at]);
      if (point) --decimal.exponent;
    } else {
      break;
    }
  }
  if (decimal.digits.empty()) return std::nullopt;
  if (at < text.size()) {
    if (text[at] != 'e' && text[at] != 'E') return std::nullopt;
    absl::string_view tail = text.substr(at + 1);
    const bool negative = absl::ConsumePrefix(&tail, "-");
    if (!negative) absl::ConsumePrefix(&tail, "+");
    if (tail.empty()) return std::nullopt;
    int64_t exponent = 0;
    for (const char c : tail) {
      if (!absl::ascii_isdigit(c)) return std::nullopt;
      // Far beyond any range; stays there.
      exponent = std::min<int64_t>(exponent * 10 + (c - '0'), 1'000'000'000);
    }
    decimal.exponent += negative ? -exponent : exponent;
  }
  decimal.digits.erase(0, decimal.digits.find_first_not_of('0'));
  while (!decimal.digits.empty() && decimal.digits.back() == '0') {
    decimal.digits.pop_back();
    ++decimal.exponent;
  }
  return decimal;
}

absl::Status Fault(absl::string_view expected, absl::string_view text,
                   absl::string_view hint = "") {
  return absl::InvalidArgumentError(
      absl::StrCat("expected ", expected, ", got ", Quoted(text), hint));
}

// `text` without what separates its digits; as a decimal point, a comma that
// does not stand before three digits.
std::string WithoutSeparators(absl::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '_' || text[i] == '\'') continue;
    if (text[i] != ',') {
      plain.push_back(text[i]);
      continue;
    }
    size_t digits = 0;
    while (i + 1 + digits < text.size() &&
           absl::ascii_isdigit(text[i + 1 + digits])) {
      ++digits;
    }
    if (digits != 3) plain.push_back('.');
  }
  return plain;
}

// What to write instead of something that is nearly a number.
std::string Hint(absl::string_view text, bool whole) {
  const auto reads = [whole](absl::string_view number) {
    const std::optional<Decimal> decimal = Read(number);
    return decimal && (!whole || decimal->exponent >= 0);
  };
  const std::string plain = WithoutSeparators(text);
  if (plain != text && reads(plain)) return absl::StrCat(": write ", plain);
  absl::string_view digits = text;
  const absl::string_view sign = absl::ConsumePrefix(&digits, "-") ? "-" : "";
  if (absl::StartsWithIgnoreCase(digits, "0x") ||
      absl::StartsWithIgnoreCase(digits, "0o") ||
      absl::StartsWithIgnoreCase(digits, "0b")) {
    return ": write it in decimal";
  }
  while (digits.size() > 1 && digits[0] == '0') digits.remove_prefix(1);
  const std::string stripped = absl::StrCat(sign, digits);
  if (stripped != text && reads(stripped)) {
    return absl::StrCat(": write ", stripped);
  }
  return "";
}

// The value, or nothing if it is not whole or no int64.
std::optional<int64_t> Value(const Decimal& decimal) {
  if (decimal.digits.empty()) return 0;
  if (decimal.exponent < 0) return std::nullopt;
  __int128 value = 0;
  const __int128 limit = __int128{1} << 64;
  for (const char c : decimal.digits) {
    value = value * 10 + (c - '0');
    if (value > limit) return std::nullopt;
  }
  for (int64_t i = 0; i < decimal.exponent; ++i) {
    value *= 10;
    if (value > limit) return std::nullopt;
  }
  if (decimal.negative) value = -value;
  if (value < std::numeric_limits<int64_t>::min() ||
      value > std::numeric_limits<int64_t>::max()) {
    return std::nullopt;
  }
  return static_cast<int64_t>(value);
}

}  // namespace

bool IsNumber(absl::string_view text) { return Read(text).has_value(); }

absl::StatusOr<int64_t> ParseInteger(absl::string_view text, int64_t min,
                                     int64_t max) {
  const std::optional<Decimal> decimal = Read(text);
  if (!decimal) return Fault("a whole number", text, Hint(text, true));
  if (!decimal->digits.empty() && decimal->exponent < 0) {
    return Fault("a whole number", text);
  }
  const std::optional<int64_t> value = Value(*decimal);
  if (!value || *value < min || *value > max) {
    return Fault(absl::StrCat("a whole number, ", min, " to ", max), text);
  }
  return *value;
}

absl::StatusOr<double> ParseDouble(absl::string_view text) {
  if (!IsNumber(text)) return Fault("a number", text, Hint(text, false));
  absl::string_view digits = text;
  absl::ConsumePrefix(&digits, "+");
  double value = 0;
  const auto result =
      std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (result.ec != std::errc()) {
    return Fault("a number that a double can hold", text);
  }
  return value;
}

}  // namespace lockstep::cli
