#include "cli/command_line.h"

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/exit_code.h"
#include "cli/text.h"
#include "common/duration_flag.h"
#include "common/number_flag.h"
#include "google/protobuf/util/json_util.h"

namespace lockstep::cli {
namespace {

constexpr char kConnection[] = "Connection";
constexpr size_t kHelpColumns = 80;

// `text` in lines of at most `columns`, broken between words.
std::string Wrap(absl::string_view text, size_t columns) {
  std::string wrapped;
  size_t column = 0;
  for (absl::string_view word : absl::StrSplit(text, ' ')) {
    if (column > 0 && column + 1 + word.size() > columns) {
      wrapped += '\n';
      column = 0;
    } else if (column > 0) {
      wrapped += ' ';
      ++column;
    }
    // Of two blanks between sentences that are broken none is left.
    if (column == 0 && word.empty()) continue;
    absl::StrAppend(&wrapped, word);
    column += word.size();
  }
  return wrapped;
}

}  // namespace

std::string HelpFormatter::make_option_desc(const CLI::Option* option) const {
  return Wrap(option->get_description(), kHelpColumns - kOptionColumns);
}

CLI::Validator PositiveNumber(double max) {
  return CLI::Validator(
      [max](const std::string& text) { return PositiveNumberFault(text, max); },
      "");
}

void AddConnectionOptions(CLI::App* command, CommandLine* line) {
  command
      ->add_option("--coordinator", line->coordinator,
                   "Where the coordinator listens.  Default: "
                   "LOCKSTEP_COORDINATOR, else 127.0.0.1:7600")
      ->type_name("HOST:PORT")
      ->group(kConnection);
  AddDurationOption(command, "--timeout", &line->timeout,
                    "How long to ask a coordinator that does not answer: "
                    "500ms, 10s, 2m.  Default: 10s")
      ->group(kConnection);
}

CLI::Option* AddDurationOption(CLI::App* command, const std::string& name,
                               absl::Duration* value,
                               const std::string& description) {
  const auto read = [value, name](const std::string& text) {
    const auto duration = ParseDurationFlag(text);
    if (!duration.ok()) {
      throw CLI::ValidationError(name,
                                 std::string(duration.status().message()));
    }
    *value = *duration;
  };
  return command->add_option_function<std::string>(name, read, description)
      ->type_name("DURATION");
}

absl::StatusOr<std::unique_ptr<Client>> Connect(const CommandLine& line) {
  std::string coordinator = line.coordinator;
  if (coordinator.empty()) {
    coordinator = line.env.variable("LOCKSTEP_COORDINATOR").value_or("");
  }
  if (coordinator.empty()) coordinator = "127.0.0.1:7600";
  std::ostream& err = line.env.err;
  return Client::Create({.coordinator = std::move(coordinator),
                         .timeout = line.timeout,
                         .notice =
                             [&err](const std::string& text) {
                               err << "lockstep: " << text << std::endl;
                             }},
                        line.env.clock);
}

int Fail(Environment& env, const absl::Status& status) {
  env.out << std::flush;
  const std::string message = status.message().empty()
                                  ? absl::StatusCodeToString(status.code())
                                  : std::string(status.message());
  for (absl::string_view text : absl::StrSplit(message, '\n')) {
    env.err << "lockstep: error: " << OneLine(text) << "\n";
  }
  env.err << std::flush;
  return ExitCodeOf(status);
}

int FailOnFile(Environment& env, const absl::Status& status) {
  return Fail(env, absl::IsNotFound(status)
                       ? absl::InvalidArgumentError(status.message())
                       : status);
}

std::string Absolute(const Environment& env, const std::string& path) {
  return (std::filesystem::path(env.working_folder) / path).string();
}

absl::StatusOr<std::string> ToJson(const google::protobuf::Message& message,
                                   bool indented) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  options.add_whitespace = indented;
  std::string json;
  const auto status =
      google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!status.ok()) {
    return absl::InternalError(
        absl::StrCat("the answer has no JSON form: ", status.ToString()));
  }
  if (json.empty() || json.back() != '\n') json.push_back('\n');
  return json;
}

}  // namespace lockstep::cli
