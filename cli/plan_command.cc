#include "cli/plan_command.h"

#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/exit_code.h"
#include "cli/job_commands.h"
#include "cli/model_sizes.h"
#include "common/job_plan.h"
#include "common/spec.h"
#include "common/status.h"

namespace lockstep::cli {
namespace {

struct PlanOptions {
  JobFileOptions file;
  double memory_gib = 0;
  int threads = 0;
  double flops_per_second = 0;
  double memory_bytes_per_second = 0;
  double network_bytes_per_second = 0;
  bool json = false;
};

v1::PlannedWorker GivenWorker(const PlanOptions& options) {
  v1::PlannedWorker worker;
  worker.set_memory_bytes(std::llround(std::ldexp(options.memory_gib, 30)));
  worker.set_thread_count(options.threads);
  worker.set_flops_per_second(options.flops_per_second);
  worker.set_memory_bytes_per_second(options.memory_bytes_per_second);
  worker.set_network_bytes_per_second(options.network_bytes_per_second);
  return worker;
}

// For a worker that is given.
absl::StatusOr<v1::JobPlan> PlanHere(const PlanOptions& options,
                                     const v1::JobSpec& asked) {
  ASSIGN_OR_RETURN(const v1::JobSpec spec, ResolveJobSpec(asked));
  return PlanJob(spec, *ModelOf(spec), GivenWorker(options));
}

// For the workers that the coordinator knows.
absl::StatusOr<v1::JobPlan> PlanThere(const PlanOptions& options,
                                      const v1::JobSpec& asked,
                                      const CommandLine& line) {
  ASSIGN_OR_RETURN(const auto client, Connect(line));
  v1::PlanJobRequest request;
  *request.mutable_spec() = asked;
  *request.mutable_worker() = GivenWorker(options);
  ASSIGN_OR_RETURN(auto response, client->PlanJob(request));
  return std::move(*response.mutable_plan());
}

int Plan(const PlanOptions& options, CommandLine& line) {
  Environment& env = line.env;
  const auto file = ReadJobFile(options.file, env);
  if (!file.ok()) return Fail(env, file.status());
  v1::JobSpec spec = file->spec();
  absl::Status read = ReadModelSizes(&spec);
  // Then those that the job says are taken.
  if (absl::IsUnavailable(read) && !spec.model().has_sizes()) {
    read = absl::InvalidArgumentError(absl::StrCat(
        read.message(), "; plan where it can be, or give model.sizes"));
  }
  if (absl::IsInvalidArgument(read)) return Fail(env, file->Locate(read));
  const auto plan = options.memory_gib > 0 ? PlanHere(options, spec)
                                           : PlanThere(options, spec, line);
  if (!plan.ok()) return Fail(env, file->Locate(plan.status()));
  if (options.json) {
    const auto json = ToJson(*plan, /*indented=*/true);
    if (!json.ok()) return Fail(env, json.status());
    env.out << *json;
  } else {
    env.out << PlanText(*plan);
  }
  return plan->fits() ? kExitOk : kExitUsage;
}

}  // namespace

void AddPlanCommand(CLI::App* app, CommandLine* line) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command = app->add_subcommand(
      "plan", "What a job needs, and whether it fits; queues nothing");
  AddJobFileOptions(command, &options->file);
  const auto positive = PositiveNumber(1e18);
  command
      ->add_option("--memory", options->memory_gib,
                   "Of a worker, in GiB; no coordinator is asked then, and "
                   "rates are those given here.  "
                   "Default: that of the connected workers")
      ->type_name("GIB")
      ->check(PositiveNumber(1e9));
  command
      ->add_option("--threads", options->threads,
                   "Of a worker.  Default: those of the connected workers, or "
                   "1 with --memory")
      ->type_name("N")
      ->check(CLI::Range(1, 1024).description(""));
  command
      ->add_option("--flops", options->flops_per_second,
                   "Operations of matrix products that a worker sustains a "
                   "second.  Default: what the connected workers measured; "
                   "likewise the others")
      ->type_name("RATE")
      ->check(positive);
  command
      ->add_option("--memory-rate", options->memory_bytes_per_second,
                   "Bytes of its memory that it reads or writes a second")
      ->type_name("RATE")
      ->check(positive);
  command
      ->add_option("--network-rate", options->network_bytes_per_second,
                   "Bytes that it sends a second")
      ->type_name("RATE")
      ->check(positive);
  command->add_flag("--json", options->json,
                    "All of it, in the JSON form of the API");
  AddConnectionOptions(command, line);
  command->footer(R"(
For each ZeRO stage and number of workers: the memory of the worker that needs
the most, by what it is for, while the model loads and at its peak; what the
worker sends in a step that sends the most.  Memory is exact but for what the
process itself takes, which is in LOAD and PEAK only.  Times are predicted from
what each worker measured, alone, when it started: expect more where workers
share a processor.

A Hugging Face folder is read here, not by the coordinator.

The exit code is 0 if the job fits parallel.min_workers workers, and 2 if not;
then what would make it fit is listed.

Examples:
  lockstep plan job.yaml
  lockstep plan job.yaml --memory 16 --set parallel.max_workers=8
  lockstep plan job.yaml --flops 2e11 --memory-rate 2e10 --network-rate 1e9)");
  command->callback([options, line] {
    line->run = [options, line] { return Plan(*options, *line); };
  });
}

}  // namespace lockstep::cli
