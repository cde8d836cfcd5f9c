// Text from outside, checked and made fit for messages.
#ifndef COMMON_PRINTABLE_H_
#define COMMON_PRINTABLE_H_

#include <cstddef>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace lockstep {

// The offset of the first byte that is not part of well-formed UTF-8 (overlong
// forms, surrogates and values above U+10FFFF are not); nothing if all is.
std::optional<size_t> FindInvalidUtf8(absl::string_view text);

// Whether `text` is UTF-8 and shows as what it is on one line: no control
// characters, no line or paragraph separators, none of the characters that
// turn the direction of text around.
bool IsPrintableUtf8(absl::string_view text);

// `text` in double quotes, safe in one line of a message: what is not printable
// UTF-8 as escapes, and cut after at most `bytes_max` bytes, which then is
// said.
std::string Quoted(absl::string_view text, size_t bytes_max = 100);

// The shortest decimal that reads back as `value`: "0.1", "2e-05", "1e+22".
std::string DoubleText(double value);

}  // namespace lockstep

#endif  // COMMON_PRINTABLE_H_
