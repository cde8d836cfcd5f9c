#include "cli/checkpoint_commands.h"

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/exit_code.h"
#include "cli/table.h"
#include "cli/text.h"
#include "common/layout.h"
#include "common/status.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/hugging_face.h"

namespace lockstep::cli {
namespace {

constexpr char kCheckpointsHelp[] = R"(
Lists the folder checkpoints/ of the job's output directory, which must be
reachable from here.  "whole" means that everything is there; lockstep verify
compares the contents too.

Example:
  lockstep checkpoints a1)";

constexpr char kVerifyHelp[] = R"(
Reads all of it, and compares every part with the SHA-256 in its manifest.

Example:
  lockstep verify out/checkpoints/step-000000001000)";

constexpr char kExportHelp[] = R"(
The checkpoint is verified first.  Tokenizer files come from the folder that the
job's model came from, if that is still there.

Example:
  lockstep export out/checkpoints/step-000000001000 model-1000)";

std::string SizeText(int64_t bytes) {
  return absl::StrFormat("%.1f MB", static_cast<double>(bytes) / 1e6);
}

int Verify(Environment& env, const std::string& path) {
  const absl::StatusOr<Checkpoint> checkpoint =
      Checkpoint::Open(Absolute(env, path));
  if (!checkpoint.ok()) return FailOnFile(env, checkpoint.status());
  if (const absl::Status status = checkpoint->Verify(); !status.ok()) {
    return Fail(env, status);
  }
  const CheckpointInfo& info = checkpoint->info();
  env.out << "whole: " << info.step_count << " steps of jobs/" << info.job
          << ", " << checkpoint->layout().parameter_count << " parameters, "
          << checkpoint->part_count() << " parts, "
          << SizeText(checkpoint->byte_count()) << "\n";
  return kExitOk;
}

int Export(Environment& env, const std::string& from, const std::string& to) {
  const absl::StatusOr<Checkpoint> checkpoint =
      Checkpoint::Open(Absolute(env, from));
  if (!checkpoint.ok()) return FailOnFile(env, checkpoint.status());
  std::error_code ignored;
  if (std::filesystem::exists(Absolute(env, to), ignored)) {
    return Fail(env, absl::InvalidArgumentError(absl::StrCat(
                         to,
                         ": is there already; give a folder that is not, "
                         "below one that is")));
  }
  const CheckpointInfo& info = checkpoint->info();
  const auto write = [&]() -> absl::Status {
    RETURN_IF_ERROR(checkpoint->Verify());
    ASSIGN_OR_RETURN(auto writer,
                     HuggingFaceWriter::Create(
                         {.temporary_folder = Absolute(env, to),
                          .config = info.model,
                          .dropout = info.dropout,
                          .source_folder = checkpoint->source_folder()}));
    const std::vector<Unit>& units = checkpoint->layout().units;
    std::vector<float> values;
    for (int u = 0; u < static_cast<int>(units.size()); ++u) {
      values.resize(units[u].range.element_count);
      RETURN_IF_ERROR(checkpoint->ReadUnit(u, values.data()));
      RETURN_IF_ERROR(writer->WriteUnit(u, values.data()));
    }
    return writer->Finish();
  };
  if (const absl::Status status = write(); !status.ok()) {
    return FailOnFile(env, status);
  }
  env.out << to << "\n";
  return kExitOk;
}

int Checkpoints(CommandLine& line, const std::string& name) {
  Environment& env = line.env;
  const auto client = Connect(line);
  if (!client.ok()) return Fail(env, client.status());
  const auto job = (*client)->GetJob(WithPrefix("jobs/", name));
  if (!job.ok()) return Fail(env, job.status());
  const std::string folder =
      absl::StrCat(job->spec().output_directory(), "/checkpoints");
  const auto step_counts = ListCheckpoints(folder);
  if (!step_counts.ok()) return Fail(env, step_counts.status());
  if (step_counts->empty() && job->progress().checkpoint_step_count() > 0) {
    return Fail(env, absl::FailedPreconditionError(absl::StrCat(
                         folder, ": not to be seen from here; the newest has ",
                         job->progress().checkpoint_step_count(), " steps")));
  }
  Table table({{.title = "STEPS", .right = true},
               {.title = "SIZE", .right = true},
               {.title = "PARTS", .right = true},
               {.title = "STATE"},
               {.title = "PATH"}});
  std::string faults;
  for (const int64_t step_count : *step_counts) {
    const std::string path =
        absl::StrCat(folder, "/", CheckpointName(step_count));
    const auto checkpoint = Checkpoint::Open(path);
    table.Add({absl::StrCat(step_count),
               checkpoint.ok() ? SizeText(checkpoint->byte_count()) : "-",
               checkpoint.ok() ? absl::StrCat(checkpoint->part_count()) : "-",
               checkpoint.ok() ? "whole" : "not whole", path});
    if (!checkpoint.ok()) {
      absl::StrAppend(&faults, OneLine(checkpoint.status().message()), "\n");
    }
  }
  table.Print(env.out);
  if (!faults.empty()) env.out << "\n" << faults;
  return kExitOk;
}

}  // namespace

void AddCheckpointCommands(CLI::App* app, CommandLine* line) {
  CLI::App* list =
      app->add_subcommand("checkpoints", "The checkpoints of a job");
  auto job = std::make_shared<std::string>();
  list->add_option("JOB", *job, "Its name, with or without jobs/")->required();
  AddConnectionOptions(list, line);
  list->footer(kCheckpointsHelp);
  list->callback([line, job] {
    line->run = [line, job] { return Checkpoints(*line, *job); };
  });

  CLI::App* verify = app->add_subcommand(
      "verify", "Whether a checkpoint is whole, as it was written");
  auto checked = std::make_shared<std::string>();
  verify->add_option("FOLDER", *checked, "Such as out/checkpoints/step-N")
      ->required();
  verify->footer(kVerifyHelp);
  verify->callback([line, checked] {
    line->run = [line, checked] { return Verify(line->env, *checked); };
  });

  CLI::App* exported = app->add_subcommand(
      "export", "A Hugging Face folder of a checkpoint's weights");
  auto paths = std::make_shared<std::pair<std::string, std::string>>();
  exported
      ->add_option("CHECKPOINT", paths->first, "Such as out/checkpoints/step-N")
      ->required();
  exported->add_option("FOLDER", paths->second, "To be made")->required();
  exported->footer(kExportHelp);
  exported->callback([line, paths] {
    line->run = [line, paths] {
      return Export(line->env, paths->first, paths->second);
    };
  });
}

}  // namespace lockstep::cli
