// Values as people read them.
#ifndef CLI_TEXT_H_
#define CLI_TEXT_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/bytes_text.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/timestamp.pb.h"

namespace lockstep::cli {

absl::Duration ToDuration(const google::protobuf::Duration& duration);
double ToMilliseconds(const google::protobuf::Duration& duration);

// "2026-11-29 16:05:28", in UTC; "-" if it is not set.
std::string TimeText(const google::protobuf::Timestamp& time);

// At most two units: "0s", "59s", "1m20s", "2h05m", "3d04h".  Rounded to the
// nearest second; a negative one is "0s".
std::string DurationText(absl::Duration duration);

// Three digits: "0", "999", "1.23k", "45.6M", "7.89G".
std::string CountText(double count);

using lockstep::BytesText;

// Text of others, fit for one line of a terminal: what could move the cursor
// or break the line is escaped.
std::string OneLine(absl::string_view text);

// How many columns UTF-8 text takes, characters counted as one each.
int DisplayWidth(absl::string_view text);

// `text` cut to `width` columns, the last of which then is "~".
std::string Fit(absl::string_view text, int width);

// "jobs/x" of "x" and of "jobs/x".
std::string WithPrefix(absl::string_view prefix, absl::string_view name);

// "x" of "jobs/x".
std::string WithoutPrefix(absl::string_view prefix, absl::string_view name);

}  // namespace lockstep::cli

#endif  // CLI_TEXT_H_
