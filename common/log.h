// Log lines, through glog: LOG(INFO), LOG(WARNING), LOG(ERROR).
//
//   LOG(INFO) << "job changed" << Field("job", id) << Field("state",
//   "RUNNING");
//
// is the line
//
//   2026-11-29T08:15:30.123Z INFO job changed job=j-abc state=RUNNING
//
// One record, one line, on standard error: a line break in it is escaped.  INFO
// is a change of state; ERROR means that someone should look.
#ifndef COMMON_LOG_H_
#define COMMON_LOG_H_

#include <glog/logging.h>

#include <ostream>
#include <sstream>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace lockstep {

// Sends log lines to standard error in the form above, for the rest of the
// process.  Once, from main, before other threads start.  `program`: argv[0];
// it must live for ever.
void InitLog(const char* program);

// " name=value"; the value in quotes when it is empty or holds anything but
// printable ASCII without blanks, quotes, '=' and backslashes.  In quotes,
// backslashes, quotes and control characters are escaped.
// Whether `line` is one of our log's, of severity INFO.
bool IsInfoLine(absl::string_view line);

std::string FieldText(absl::string_view name, absl::string_view value);

template <typename Value>
std::string Field(absl::string_view name, const Value& value) {
  std::ostringstream text;
  text << value;
  return FieldText(name, text.str());
}

// The line of one record, without its line break.  FATAL also names the place.
std::string FormatLogLine(absl::Time time, int severity, const char* file,
                          int line, absl::string_view message);

}  // namespace lockstep

#endif  // COMMON_LOG_H_
