#include "cli/monitor_commands.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/exit_code.h"
#include "cli/metrics_command.h"
#include "cli/table.h"
#include "cli/text.h"

namespace lockstep::cli {
namespace {

// --- workers

int Workers(bool as_json, CommandLine& line) {
  Environment& env = line.env;
  const auto client = Connect(line);
  if (!client.ok()) return Fail(env, client.status());
  const auto response = (*client)->ListWorkers();
  if (!response.ok()) return Fail(env, response.status());
  if (as_json) {
    const auto json = ToJson(*response, /*indented=*/true);
    if (!json.ok()) return Fail(env, json.status());
    env.out << *json;
    return kExitOk;
  }
  Table table({{.title = "WORKER"},
               {.title = "STATE"},
               {.title = "PHASE"},
               {.title = "JOB"},
               {.title = "RANK", .right = true},
               {.title = "COLLECTIVES"},
               {.title = "DEVICE"},
               {.title = "THREADS", .right = true},
               {.title = "MEMORY", .right = true},
               {.title = "NUMERIC CLASS"},
               {.title = "HOST"},
               {.title = "DEATHS", .right = true},
               {.title = "LAST SEEN (UTC)"},
               {.title = "REASON"}});
  for (const v1::Worker& worker : response->workers()) {
    const v1::DeviceInfo& device = worker.device();
    table.Add(
        {WithoutPrefix("workers/", worker.name()),
         v1::Worker::State_Name(worker.state()),
         worker.phase() == 0 ? "-" : v1::Worker::Phase_Name(worker.phase()),
         worker.job().empty() ? "-" : worker.job(),
         worker.job().empty() ? "-" : absl::StrCat(worker.rank()),
         worker.collectives() == 0
             ? "-"
             : v1::Worker::Collectives_Name(worker.collectives()),
         device.kind(),
         device.thread_count() > 0 ? absl::StrCat(device.thread_count()) : "-",
         BytesText(device.memory_bytes()), device.numeric_class(),
         device.host(), absl::StrCat(worker.trainer_death_count()),
         TimeText(worker.last_seen_time()),
         Fit(OneLine(worker.state_reason()), 60)});
  }
  table.Print(env.out);
  return kExitOk;
}

void AddWorkers(CLI::App* app, CommandLine* line) {
  auto json = std::make_shared<bool>(false);
  CLI::App* command = app->add_subcommand("workers", "List the worker daemons");
  command->add_flag("--json", *json,
                    "All of them, in the JSON form of the API");
  AddConnectionOptions(command, line);
  command->footer(R"(
MEMORY is the device's, on a CPU the host's.  Jobs mix only workers of one
NUMERIC CLASS:
another would give other bits.  COLLECTIVES is the way by which the ranks of a
job exchange gradients.  DEATHS counts trainers that died since the
daemon started.)");
  command->callback([json, line] {
    line->run = [json, line] { return Workers(*json, *line); };
  });
}

// --- stragglers

struct StragglerOptions {
  std::string name;
  int32_t window_steps = 0;
  double threshold = 0;
  bool json = false;
};

int Stragglers(const StragglerOptions& options, CommandLine& line) {
  Environment& env = line.env;
  const auto client = Connect(line);
  if (!client.ok()) return Fail(env, client.status());
  v1::GetStragglersRequest request;
  request.set_job(WithPrefix("jobs/", options.name));
  request.set_window_steps(options.window_steps);
  request.set_score_threshold(options.threshold);
  const auto response = (*client)->GetStragglers(request);
  if (!response.ok()) return Fail(env, response.status());
  if (options.json) {
    const auto json = ToJson(*response, /*indented=*/true);
    if (!json.ok()) return Fail(env, json.status());
    env.out << *json;
    return kExitOk;
  }
  Table table({{.title = "RANK", .right = true},
               {.title = "WORKER"},
               {.title = "MS/MICRO-BATCH", .right = true},
               {.title = "OTHERS", .right = true},
               {.title = "SCORE", .right = true},
               {.title = "STEPS", .right = true},
               {.title = "PHASE"},
               {.title = "VERDICT"}});
  for (const v1::RankScore& rank : response->ranks()) {
    table.Add(
        {absl::StrCat(rank.rank()), WithoutPrefix("workers/", rank.worker()),
         absl::StrFormat("%.2f",
                         ToMilliseconds(rank.compute_per_micro_batch())),
         absl::StrFormat("%.2f", ToMilliseconds(rank.median_of_others())),
         absl::StrFormat("%.2f", rank.score()), absl::StrCat(rank.step_count()),
         v1::Worker::Phase_Name(rank.phase()),
         rank.straggler() ? absl::StrCat("STRAGGLER, in ", rank.slow_phase())
                          : "ok"});
  }
  table.Print(env.out);
  env.out << absl::StrFormat("Steps %d to %d of generation %d.\n",
                             response->first_step(), response->last_step(),
                             response->generation());
  return kExitOk;
}

void AddStragglers(CLI::App* app, CommandLine* line) {
  auto options = std::make_shared<StragglerOptions>();
  CLI::App* command =
      app->add_subcommand("stragglers", "Compare the speed of a job's workers");
  command
      ->add_option("JOB", options->name, "The job; \"jobs/\" may be left out")
      ->type_name("")
      ->required();
  command
      ->add_option("--window", options->window_steps,
                   "Look at so many of the last steps: 1 to 10000.  "
                   "Default: 50")
      ->type_name("STEPS")
      ->check(CLI::Range(1, 10'000).description(""));
  command
      ->add_option("--threshold", options->threshold,
                   "A rank is a straggler from this score on: above 1, to "
                   "1000.  Default: 1.2")
      ->type_name("SCORE")
      ->check(CLI::Range(1.0, 1000.0).description(""));
  command->add_flag("--json", options->json, "In the JSON form of the API");
  AddConnectionOptions(command, line);
  command->footer(R"(
A collective makes every rank's step equally long; so ranks are compared by
their own work:
MS/MICRO-BATCH is the median time, in milliseconds, that a rank computed for a
micro-batch, OTHERS the median of the other ranks, and SCORE the first divided
by the second.)");
  command->callback([options, line] {
    line->run = [options, line] { return Stragglers(*options, *line); };
  });
}

}  // namespace

void AddMonitorCommands(CLI::App* app, CommandLine* line) {
  AddMetricsCommand(app, line);
  AddWorkers(app, line);
  AddStragglers(app, line);
}

}  // namespace lockstep::cli
