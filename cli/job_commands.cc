#include "cli/job_commands.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/exit_code.h"
#include "cli/model_sizes.h"
#include "cli/nearest_name.h"
#include "cli/progress.h"
#include "cli/spec_yaml.h"
#include "cli/table.h"
#include "cli/text.h"
#include "common/status.h"

namespace lockstep::cli {
namespace {

constexpr char kJobs[] = "jobs/";

CLI::Option* AddJobArgument(CLI::App* command, std::string* name) {
  return command
      ->add_option("JOB", *name,
                   "The job, as submit and list show it; \"jobs/\" may be "
                   "left out")
      ->type_name("")
      ->required();
}

// --- submit

struct SubmitOptions {
  JobFileOptions file;
  bool watch = false;
  std::string request_id;
};

int Submit(const SubmitOptions& options, CommandLine& line) {
  Environment& env = line.env;
  const auto file = ReadJobFile(options.file, env);
  if (!file.ok()) return Fail(env, file.status());
  const auto client = Connect(line);
  if (!client.ok()) return Fail(env, client.status());

  v1::SubmitJobRequest request;
  *request.mutable_spec() = file->spec();
  const absl::Status read = ReadModelSizes(request.mutable_spec());
  if (absl::IsInvalidArgument(read)) return Fail(env, file->Locate(read));
  request.set_request_id(options.request_id.empty() ? env.make_request_id()
                                                    : options.request_id);
  const auto job = (*client)->SubmitJob(request);
  if (!job.ok()) {
    const int code = Fail(env, file->Locate(job.status()));
    if (code == kExitUnreachable) {
      env.err << "lockstep: it may have been queued all the same; the same "
                 "command with --request-id "
              << request.request_id() << " does not queue it twice\n";
    }
    return code;
  }
  if (!read.ok() && !job->spec().model().has_sizes()) {
    env.err << "lockstep: note: " << OneLine(std::string(read.message()))
            << "; so its memory is not planned, and its workers check it\n";
  }
  env.out << job->name() << std::endl;
  return options.watch ? Watch(**client, job->name(), env) : kExitOk;
}

void AddSubmit(CLI::App* app, CommandLine* line) {
  auto options = std::make_shared<SubmitOptions>();
  CLI::App* command =
      app->add_subcommand("submit", "Queue a job; prints its name");
  AddJobFileOptions(command, &options->file);
  command->add_flag("--watch", options->watch,
                    "Then show it until it has ended; the exit code says how");
  command
      ->add_option("--request-id", options->request_id,
                   "1 to 128 printable ASCII characters: a repeated submission "
                   "with the same one queues nothing and prints the first "
                   "one's name.  Default: a fresh one")
      ->type_name("ID")
      ->check([](const std::string& id) {
        return id.empty() ? "expected 1 to 128 characters" : "";
      });
  AddConnectionOptions(command, line);
  command->footer(R"(
Examples:
  lockstep submit job.yaml
  lockstep submit job.yaml --watch --set batch.global_batch_size=64
  lockstep submit job.yaml --set 'data.files=[a.txt, b.txt]'
  job=$(lockstep submit job.yaml) && lockstep watch $job

docs/job-file.md explains every field of a job file.)");
  command->callback([options, line] {
    line->run = [options, line] { return Submit(*options, *line); };
  });
}

// --- ledger

// What is wrong with the rows, which should have each micro-batch of each step
// once; empty if nothing is.
std::string LedgerFault(const v1::Job& job) {
  const int64_t micro_batches = job.spec().batch().global_batch_size() /
                                job.spec().batch().micro_batch_size();
  int64_t next = 0;
  for (const v1::LedgerRow& row : job.ledger()) {
    if (row.first_step() != next) {
      return absl::StrCat("steps from ", next,
                          " on are not accounted for once");
    }
    next = row.end_step();
    int64_t batch = 0;
    for (const v1::MicroBatchRange& range : row.micro_batches()) {
      if (range.count() > 0 && range.first() != batch) break;
      batch += range.count();
    }
    if (batch != micro_batches) {
      return absl::StrCat("generation ", row.generation(), ": micro-batch ",
                          batch, " is not accounted for once");
    }
  }
  if (next < job.progress().step_count()) {
    return absl::StrCat("steps from ", next, " on are not accounted for");
  }
  return "";
}

int Ledger(const std::string& name, CommandLine& line) {
  Environment& env = line.env;
  const auto client = Connect(line);
  if (!client.ok()) return Fail(env, client.status());
  const auto job = (*client)->GetJob(WithPrefix(kJobs, name));
  if (!job.ok()) return Fail(env, job.status());
  Table table({{.title = "STEPS"},
               {.title = "GEN", .right = true},
               {.title = "WORKERS AND THEIR MICRO-BATCHES"}});
  int64_t end = 0;
  for (const v1::LedgerRow& row : job->ledger()) {
    std::vector<std::string> workers;
    for (int i = 0; i < row.workers_size(); ++i) {
      const v1::MicroBatchRange& range = row.micro_batches(i);
      workers.push_back(
          absl::StrCat(WithoutPrefix("workers/", row.workers(i)), " ",
                       range.count() == 0
                           ? "-"
                           : absl::StrCat(range.first(), " to ",
                                          range.first() + range.count() - 1)));
    }
    table.Add({row.end_step() > row.first_step()
                   ? absl::StrCat(row.first_step(), " to ", row.end_step() - 1)
                   : "none yet",
               absl::StrCat(row.generation()), absl::StrJoin(workers, ", ")});
    end = row.end_step();
  }
  table.Print(env.out);
  if (const std::string fault = LedgerFault(*job); !fault.empty()) {
    return Fail(env, absl::DataLossError(fault));
  }
  env.out << end << " steps of " << job->spec().batch().global_batch_size()
          << " sequences, each once\n";
  return kExitOk;
}

void AddLedger(CLI::App* app, CommandLine* line) {
  auto name = std::make_shared<std::string>();
  CLI::App* command = app->add_subcommand(
      "ledger", "Which workers took which steps of a job, each once");
  command->add_option("JOB", *name, "Its name, with or without jobs/")
      ->required();
  AddConnectionOptions(command, line);
  command->footer(R"(
As the trainers and their checkpoints say.  Steps that were taken and lost are
the later generation's, which took them again.  Checks that every sequence of
every committed step is accounted for once, and fails if not.

Example:
  lockstep ledger a1)");
  command->callback([name, line] {
    line->run = [name, line] { return Ledger(*name, *line); };
  });
}

// --- get

struct GetOptions {
  std::string name;
  bool json = false;
  bool yaml = false;
};

void PrintJob(const v1::Job& job, std::ostream& out) {
  const auto say = [&](absl::string_view label, absl::string_view value) {
    if (!value.empty()) {
      out << absl::StrFormat("%-13s %s\n", label, OneLine(value));
    }
  };
  say("name", job.name());
  say("display name", job.spec().display_name());
  say("state", v1::Job::State_Name(job.state()));
  say("reason", job.state_reason());
  say("progress", ProgressText(job));
  if (job.progress().token_count() > 0) {
    say("tokens", CountText(static_cast<double>(job.progress().token_count())));
  }
  if (job.generation() > 0) {
    std::vector<std::string> workers;
    for (const std::string& worker : job.workers()) {
      workers.push_back(WithoutPrefix("workers/", worker));
    }
    say("workers", workers.empty() ? "none" : absl::StrJoin(workers, " "));
    say("generation", absl::StrCat(job.generation()));
  }
  if (job.failure_count() > 0) {
    say("failures",
        absl::StrCat(job.failure_count(), " of at most ",
                     job.spec().parallel().failures_max(), " in a row"));
  }
  say("numeric class", job.numeric_class());
  say("created", absl::StrCat(TimeText(job.create_time()), " UTC"));
  if (job.has_start_time()) {
    say("started", absl::StrCat(TimeText(job.start_time()), " UTC"));
  }
  if (job.has_end_time()) {
    say("ended", absl::StrCat(TimeText(job.end_time()), " UTC"));
  }
  say("output", job.spec().output_directory());
  say("spec digest", job.spec_digest());
}

int Get(const GetOptions& options, CommandLine& line) {
  Environment& env = line.env;
  const auto client = Connect(line);
  if (!client.ok()) return Fail(env, client.status());
  const auto job = (*client)->GetJob(WithPrefix(kJobs, options.name));
  if (!job.ok()) return Fail(env, job.status());
  if (options.json) {
    const auto json = ToJson(*job, /*indented=*/true);
    if (!json.ok()) return Fail(env, json.status());
    env.out << *json;
  } else if (options.yaml) {
    env.out << SpecToYaml(job->spec());
  } else {
    PrintJob(*job, env.out);
  }
  return kExitOk;
}

void AddGet(CLI::App* app, CommandLine* line) {
  auto options = std::make_shared<GetOptions>();
  CLI::App* command = app->add_subcommand("get", "Show one job");
  AddJobArgument(command, &options->name);
  CLI::Option* json = command->add_flag(
      "--json", options->json, "All of it, in the JSON form of the API");
  command
      ->add_flag("--yaml", options->yaml,
                 "Its specification, all defaults filled in, as a job file")
      ->excludes(json);
  AddConnectionOptions(command, line);
  command->footer(R"(
Examples:
  lockstep get jobs/a1
  lockstep get a1 --yaml > again.yaml   # edit, submit
  lockstep get a1 --json | jq .progress.loss

Losses are in nats a token.)");
  command->callback([options, line] {
    line->run = [options, line] { return Get(*options, *line); };
  });
}

// --- list

struct ListOptions {
  std::vector<std::string> states;
  int64_t limit = 20;
  bool json = false;
};

absl::StatusOr<v1::Job::State> ParseState(const std::string& text) {
  v1::Job::State state;
  if (v1::Job::State_Parse(absl::AsciiStrToUpper(text), &state) && state != 0) {
    return state;
  }
  std::vector<std::string> names;
  const auto* type = v1::Job::State_descriptor();
  for (int i = 1; i < type->value_count(); ++i) {
    names.push_back(type->value(i)->name());
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--state: expected ", JoinWithOr(names), ", got ", OneLine(text)));
}

std::string StepsText(const v1::JobProgress& progress) {
  if (progress.step_count() == 0 && progress.max_steps() == 0) return "-";
  return absl::StrCat(
      progress.step_count(), "/",
      progress.max_steps() > 0 ? absl::StrCat(progress.max_steps()) : "?");
}

int List(const ListOptions& options, CommandLine& line) {
  Environment& env = line.env;
  v1::ListJobsRequest request;
  for (const std::string& text : options.states) {
    for (absl::string_view name : absl::StrSplit(text, ',')) {
      const auto state = ParseState(std::string(name));
      if (!state.ok()) return Fail(env, state.status());
      request.add_states(*state);
    }
  }
  const auto client = Connect(line);
  if (!client.ok()) return Fail(env, client.status());
  const auto response = (*client)->ListJobs(request, options.limit);
  if (!response.ok()) return Fail(env, response.status());
  if (options.json) {
    const auto json = ToJson(*response, /*indented=*/true);
    if (!json.ok()) return Fail(env, json.status());
    env.out << *json;
    return kExitOk;
  }
  Table table({{.title = "JOB"},
               {.title = "STATE"},
               {.title = "STEP", .right = true},
               {.title = "LOSS", .right = true},
               {.title = "TOKENS/S", .right = true},
               {.title = "WORKERS", .right = true},
               {.title = "CREATED (UTC)"},
               {.title = "DISPLAY NAME"},
               {.title = "REASON"}});
  for (const v1::Job& job : response->jobs()) {
    const v1::JobProgress& progress = job.progress();
    const bool fast = !IsFinal(job.state()) && progress.tokens_per_second() > 0;
    table.Add(
        {job.name(), v1::Job::State_Name(job.state()), StepsText(progress),
         progress.step_count() > 0 ? LossText(progress) : "-",
         fast ? CountText(progress.tokens_per_second()) : "-",
         absl::StrCat(job.workers_size()), TimeText(job.create_time()),
         job.spec().display_name(), Fit(OneLine(job.state_reason()), 60)});
  }
  table.Print(env.out);
  return kExitOk;
}

void AddList(CLI::App* app, CommandLine* line) {
  auto options = std::make_shared<ListOptions>();
  CLI::App* command = app->add_subcommand("list", "List jobs, newest first");
  command
      ->add_option("--state", options->states,
                   "Only jobs in this state; may be repeated: QUEUED, FORMING, "
                   "RUNNING, RECOVERING, COMPLETED, CANCELLED, FAILED")
      ->type_name("STATE")
      ->expected(1)
      ->take_all();
  command
      ->add_option("--limit", options->limit, "At most so many.  Default: 20")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000}).description(""));
  command->add_flag("--json", options->json,
                    "All of them, in the JSON form of the API");
  AddConnectionOptions(command, line);
  command->footer(R"(
Examples:
  lockstep list --state QUEUED --state RUNNING
  lockstep list --json | jq -r '.jobs[].name'

Losses are in nats a token.)");
  command->callback([options, line] {
    line->run = [options, line] { return List(*options, *line); };
  });
}

// --- watch

void AddWatch(CLI::App* app, CommandLine* line) {
  auto name = std::make_shared<std::string>();
  CLI::App* command = app->add_subcommand(
      "watch", "Show a job until it has ended; the exit code says how");
  AddJobArgument(command, name.get());
  AddConnectionOptions(command, line);
  command->footer(R"(
On a terminal one line is kept up to date; elsewhere every change is a line,
steps at most every ten seconds.  Losses are in nats a token.  The coordinator
may restart meanwhile.

Example:
  lockstep watch jobs/a1 && echo trained)");
  command->callback([name, line] {
    line->run = [name, line]() -> int {
      const auto client = Connect(*line);
      if (!client.ok()) return Fail(line->env, client.status());
      return Watch(**client, WithPrefix(kJobs, *name), line->env);
    };
  });
}

// --- cancel

struct CancelOptions {
  std::string name;
  std::string reason;
};

int Cancel(const CancelOptions& options, CommandLine& line) {
  Environment& env = line.env;
  const auto client = Connect(line);
  if (!client.ok()) return Fail(env, client.status());
  v1::CancelJobRequest request;
  request.set_name(WithPrefix(kJobs, options.name));
  request.set_reason(options.reason);
  request.set_request_id(env.make_request_id());
  const auto job = (*client)->CancelJob(request);
  if (!job.ok()) return Fail(env, job.status());
  env.out << job->name() << " " << v1::Job::State_Name(job->state()) << "\n";
  return kExitOk;
}

void AddCancel(CLI::App* app, CommandLine* line) {
  auto options = std::make_shared<CancelOptions>();
  CLI::App* command =
      app->add_subcommand("cancel", "End a job that has not ended");
  AddJobArgument(command, &options->name);
  command
      ->add_option("--reason", options->reason,
                   "Shown with the job and in logs; at most 1,000 bytes")
      ->type_name("TEXT");
  AddConnectionOptions(command, line);
  command->footer(R"(
What the job wrote so far stays, except unfinished files.

Example:
  lockstep cancel jobs/a1 --reason 'wrong data')");
  command->callback([options, line] {
    line->run = [options, line] { return Cancel(*options, *line); };
  });
}

}  // namespace

void AddJobCommands(CLI::App* app, CommandLine* line) {
  AddSubmit(app, line);
  AddWatch(app, line);
  AddGet(app, line);
  AddList(app, line);
  AddCancel(app, line);
  AddLedger(app, line);
}

void AddJobFileOptions(CLI::App* command, JobFileOptions* options) {
  command->add_option("FILE", options->path, "The job, in YAML or JSON")
      ->type_name("")
      ->required();
  command
      ->add_option("--set", options->assignments,
                   "Set one field over what the file says; may be repeated.  "
                   "Relative paths in it are relative to the working folder")
      ->type_name("PATH=VALUE")
      ->expected(1)
      ->take_all();
}

absl::StatusOr<JobFile> ReadJobFile(const JobFileOptions& options,
                                    const Environment& env) {
  ASSIGN_OR_RETURN(JobFile file, JobFile::Read(options.path));
  for (const std::string& assignment : options.assignments) {
    RETURN_IF_ERROR(file.Set(assignment, env.working_folder));
  }
  return file;
}

int Watch(Client& client, const std::string& name, Environment& env) {
  ProgressView view(env.out, env.terminal, env.columns, env.clock);
  const auto job =
      client.WatchJob(name, [&](const v1::Job& now) { view.Show(now); });
  view.Finish();
  if (!job.ok()) return Fail(env, job.status());
  return SayHowItEnded(*job, env);
}

int SayHowItEnded(const v1::Job& job, Environment& env) {
  const ExitCode code = ExitCodeOf(job);
  if (code == kExitJobFailed) {
    env.out << std::flush;
    env.err << "lockstep: error: " << job.name() << " failed: ";
    // The last lines of a trainer may be among it.
    const char* margin = "";
    for (absl::string_view text : absl::StrSplit(job.state_reason(), '\n')) {
      env.err << margin << OneLine(text) << "\n";
      margin = "  ";
    }
    env.err << std::flush;
  } else if (code == kExitJobCancelled) {
    env.err << "lockstep: " << job.name() << " was cancelled"
            << (job.state_reason().empty() ? "" : ": ")
            << OneLine(job.state_reason()) << std::endl;
  } else if (job.state() == v1::Job::COMPLETED) {
    env.out << job.name() << " completed: the model is in "
            << OneLine(job.spec().output_directory()) << "/model" << std::endl;
  }
  return code;
}

}  // namespace lockstep::cli
