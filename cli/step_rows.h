// Step metrics as rows of a table and of CSV.
#ifndef CLI_STEP_ROWS_H_
#define CLI_STEP_ROWS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cli/table.h"
#include "lockstep/v1/monitor_service.pb.h"

namespace lockstep::cli {

// The columns of a table, wide enough for a row of a usual job; times are in
// milliseconds, losses in nats a token.
std::vector<Column> StepColumns();
std::vector<std::string> StepRow(const v1::StepMetrics& row);

// Every field, numbers in full; units are in the names: "step_ms",
// "sent_bytes".  Absent values are empty.  With a line's end.
std::string StepCsvTitles();
std::string StepCsvRow(const v1::StepMetrics& row);

// A range of steps, both ends included.
struct StepRange {
  int64_t first = 0;
  std::optional<int64_t> last;  // To the newest.
};

// Reads "5:9", "5:", ":9", ":" and "5", which is "5:5".
//
// Errors:
//   InvalidArgument: it is none of these, or ends before it begins.
absl::StatusOr<StepRange> ParseStepRange(absl::string_view text);

}  // namespace lockstep::cli

#endif  // CLI_STEP_ROWS_H_
