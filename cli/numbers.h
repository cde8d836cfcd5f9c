// Numbers as people write them in job files.
#ifndef CLI_NUMBERS_H_
#define CLI_NUMBERS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep::cli {

// A number is decimal: digits with an optional sign, point and exponent.  Hex,
// octal, separators and suffixes are not read, but named in the error with what
// to write instead; so is a leading zero, which is octal to some readers.

// Whether `text` is a number by the rules above.
bool IsNumber(absl::string_view text);

// An integer, in any notation whose value is whole: "1000000", "1e6", "2.5e1".
// Exact: no digit passes through a floating-point number.
//
// Errors:
//   InvalidArgument: "expected ..., got ...", as the rest of a message.
absl::StatusOr<int64_t> ParseInteger(absl::string_view text, int64_t min,
                                     int64_t max);

// The nearest double.
//
// Errors:
//   InvalidArgument: as above; also for what is beyond the range of a double,
//     for "nan" and for "inf".
absl::StatusOr<double> ParseDouble(absl::string_view text);

}  // namespace lockstep::cli

#endif  // CLI_NUMBERS_H_
