// What all commands share: options, the connection, and how errors are said.
#ifndef CLI_COMMAND_LINE_H_
#define CLI_COMMAND_LINE_H_

#include <functional>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/client.h"
#include "cli/environment.h"
#include "google/protobuf/message.h"

namespace lockstep::cli {

// One command line while it is parsed and run.
struct CommandLine {
  Environment& env;

  // Of --coordinator and --timeout.
  std::string coordinator;
  absl::Duration timeout = absl::Seconds(10);

  // Set by the command that was named; returns an exit code.
  std::function<int()> run;
};

// Help whose lines fit 80 columns: descriptions are broken between words.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(kOptionColumns); }
  std::string make_option_desc(const CLI::Option* option) const override;

 private:
  static constexpr size_t kOptionColumns = 28;
};

// What refuses all but numbers above 0, up to `max`.
CLI::Validator PositiveNumber(double max);

// Adds --coordinator and --timeout to `command`.
void AddConnectionOptions(CLI::App* command, CommandLine* line);

// Adds an option that reads a duration: "10s", "1m30s", "250ms"; a number
// alone counts seconds.  Must be positive.
CLI::Option* AddDurationOption(CLI::App* command, const std::string& name,
                               absl::Duration* value,
                               const std::string& description);

// A client as the options say; its notices go to the environment's `err`.
absl::StatusOr<std::unique_ptr<Client>> Connect(const CommandLine& line);

// Says the error, each line of its message after "lockstep: error: ", and
// returns the exit code that stands for it.
int Fail(Environment& env, const absl::Status& status);

// Fail, of a file that the command line names: one that is not there makes the
// command line wrong, since the exit code for what is not found means jobs.
int FailOnFile(Environment& env, const absl::Status& status);

// Where a path on the command line is.
std::string Absolute(const Environment& env, const std::string& path);

// `message` in the JSON form of protocol buffers, with the proto's field names
// and with fields that have their default value; on one line, or indented.
//
// Errors:
//   Internal: it has no JSON form (a time outside of years 1 to 9999).
absl::StatusOr<std::string> ToJson(const google::protobuf::Message& message,
                                   bool indented);

}  // namespace lockstep::cli

#endif  // CLI_COMMAND_LINE_H_
