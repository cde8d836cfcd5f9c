#include "cli/metrics_command.h"

#include <algorithm>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/exit_code.h"
#include "cli/step_rows.h"
#include "cli/table.h"
#include "cli/text.h"

namespace lockstep::cli {
namespace {

// What a table shows when nothing is said: the end of the job, on one screen.
constexpr int64_t kStepsShown = 20;

struct MetricsOptions {
  std::string name;
  std::string steps;
  bool json = false;
  bool csv = false;
  bool follow = false;
};

// Writes rows in one of the forms.
class RowWriter {
 public:
  RowWriter(const MetricsOptions& options, Environment& env)
      : options_(options), env_(env) {
    if (options.csv) {
      env.out << StepCsvTitles();
    } else if (!options.json) {
      env.out << Table::Titles(columns_);
    }
  }

  void Write(const v1::StepMetrics& row) {
    if (options_.csv) {
      env_.out << StepCsvRow(row);
    } else if (options_.json) {
      const auto json = ToJson(row, /*indented=*/false);
      if (json.ok()) {
        env_.out << *json;
      } else {
        status_.Update(json.status());
      }
    } else {
      env_.out << Table::Row(columns_, StepRow(row));
    }
    // Whoever follows wants a row when it comes.
    if (options_.follow) env_.out << std::flush;
  }

  const absl::Status& status() const { return status_; }

 private:
  const MetricsOptions& options_;
  Environment& env_;
  const std::vector<Column> columns_ = StepColumns();
  absl::Status status_;
};

int Metrics(const MetricsOptions& options, CommandLine& line) {
  Environment& env = line.env;
  const bool all = options.csv || options.json;
  StepRange range;
  if (!options.steps.empty()) {
    const auto parsed = ParseStepRange(options.steps);
    if (!parsed.ok()) return Fail(env, parsed.status());
    range = *parsed;
    if (options.follow && range.last) {
      return Fail(env, absl::InvalidArgumentError(
                           "--follow: expected --steps FIRST:, as it goes on "
                           "to the job's end"));
    }
  }
  const auto client = Connect(line);
  if (!client.ok()) return Fail(env, client.status());
  const std::string name = WithPrefix("jobs/", options.name);
  if (options.steps.empty() && !all) {
    const auto job = (*client)->GetJob(name);
    if (!job.ok()) return Fail(env, job.status());
    range.first =
        std::max<int64_t>(0, job->progress().step_count() - kStepsShown);
    if (range.first > 0) {
      env.err << "lockstep: from step " << range.first
              << " on; --steps : shows all" << std::endl;
    }
  }

  RowWriter writer(options, env);
  const auto on_row = [&](const v1::StepMetrics& row) { writer.Write(row); };
  absl::Status status;
  if (options.follow) {
    status = (*client)->WatchStepMetrics(
        name, range.first, on_row, [&](int64_t count) {
          env.err << "lockstep: " << count
                  << " rows were left out, as this reads too slowly; the "
                     "command without --follow has them"
                  << std::endl;
        });
  } else {
    v1::ListStepMetricsRequest request;
    request.set_job(name);
    request.set_first_step(range.first);
    if (range.last) request.set_last_step(*range.last);
    status = (*client)->ListStepMetrics(request, on_row);
  }
  status.Update(writer.status());
  if (!status.ok()) return Fail(env, status);
  return kExitOk;
}

}  // namespace

void AddMetricsCommand(CLI::App* app, CommandLine* line) {
  auto options = std::make_shared<MetricsOptions>();
  CLI::App* command = app->add_subcommand(
      "metrics", "Show what each rank reported of each step");
  command
      ->add_option("JOB", options->name, "The job; \"jobs/\" may be left out")
      ->type_name("")
      ->required();
  command
      ->add_option("--steps", options->steps,
                   "Only these: FIRST:LAST, both included, FIRST:, :LAST, or "
                   "one.  Default: all; in a table the last 20")
      ->type_name("RANGE");
  CLI::Option* json =
      command->add_flag("--json", options->json,
                        "One JSON object a line, in the form of the API");
  command
      ->add_flag("--csv", options->csv,
                 "Comma-separated, units in the column names")
      ->excludes(json);
  command->add_flag("--follow", options->follow,
                    "Go on with rows as they arrive, until the job has ended");
  AddConnectionOptions(command, line);
  command->footer(R"(
A row is one rank's report of one committed step.  LOSS and HELD-OUT are means
in nats a token; RATE is the learning rate ("skipped" if the step changed no
weight), MICRO the micro-batches that the rank ran.  Times are in milliseconds:
STEP MS in all, of which DATA waited for samples, FORWARD and BACKWARD
computed, WAIT waited for other ranks with nothing else to do, and UPDATE
changed the weights.

Examples:
  lockstep metrics jobs/a1
  lockstep metrics a1 --steps 100:199 --csv > steps.csv
  lockstep metrics a1 --follow --json | jq -c '[.step, .loss]')");
  command->callback([options, line] {
    line->run = [options, line] { return Metrics(*options, *line); };
  });
}

}  // namespace lockstep::cli
