#include "common/printable.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace lockstep {
namespace {

// Reads one character at the start of `text`; 0 bytes if it is malformed.
struct Character {
  uint32_t code = 0;
  size_t bytes = 0;
};

Character ReadCharacter(absl::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {lead, 1};
  const size_t bytes = lead >= 0xF0   ? 4
                       : lead >= 0xE0 ? 3
                       : lead >= 0xC0 ? 2
                                      : 0;
  if (bytes == 0 || lead > 0xF4 || text.size() < bytes) return {};
  uint32_t code = lead & (0x7Fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xC0) != 0x80) return {};
    code = code << 6 | (next & 0x3Fu);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kLeast[bytes] || code > 0x10FFFF) return {};
  if (code >= 0xD800 && code <= 0xDFFF) return {};
  return {code, bytes};
}

bool IsPrintable(uint32_t code) {
  if (code < 0x20 || (code >= 0x7F && code < 0xA0)) return false;
  if (code == 0x2028 || code == 0x2029) return false;
  if (code == 0x200E || code == 0x200F || code == 0x061C) return false;
  if (code >= 0x202A && code <= 0x202E) return false;
  return code < 0x2066 || code > 0x2069;
}

}  // namespace

std::optional<size_t> FindInvalidUtf8(absl::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Character c = ReadCharacter(text.substr(at));
    if (c.bytes == 0) return at;
    at += c.bytes;
  }
  return std::nullopt;
}

bool IsPrintableUtf8(absl::string_view text) {
  while (!text.empty()) {
    const Character c = ReadCharacter(text);
    if (c.bytes == 0 || !IsPrintable(c.code)) return false;
    text.remove_prefix(c.bytes);
  }
  return true;
}

std::string Quoted(absl::string_view text, size_t bytes_max) {
  std::string quoted = "\"";
  size_t at = 0;
  while (at < text.size()) {
    const Character c = ReadCharacter(text.substr(at));
    const size_t bytes = std::max<size_t>(1, c.bytes);
    if (at + bytes > bytes_max) break;
    const absl::string_view piece = text.substr(at, bytes);
    absl::StrAppend(&quoted, bytes > 1 && IsPrintable(c.code)
                                 ? std::string(piece)
                                 : absl::CEscape(piece));
    at += bytes;
  }
  quoted += '"';
  if (at < text.size())
    absl::StrAppend(&quoted, "... (", text.size(), " bytes)");
  return quoted;
}

std::string DoubleText(double value) {
  char text[32];  // The longest is "-2.2250738585072014e-308".
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return std::string(text, end);
}

}  // namespace lockstep
