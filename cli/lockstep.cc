#include "cli/lockstep.h"

#include <memory>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/checkpoint_commands.h"
#include "cli/command_line.h"
#include "cli/exit_code.h"
#include "cli/job_commands.h"
#include "cli/model_commands.h"
#include "cli/monitor_commands.h"
#include "cli/nearest_name.h"
#include "cli/plan_command.h"
#include "cli/run_command.h"
#include "cli/text.h"
#include "common/version.h"

namespace lockstep::cli {
namespace {

constexpr char kAbout[] =
    "Trains language models on many workers, with the same bits on any number "
    "of them.\n"
    "This command submits jobs to a coordinator and follows them.";

constexpr char kFooter[] = R"(
First steps:
  lockstep run job.yaml --workers 2      all on this machine, start to end
  lockstep submit job.yaml --watch       on a coordinator that runs elsewhere
  lockstep COMMAND --help                what a command does, with examples

Environment:
  LOCKSTEP_COORDINATOR    where the coordinator listens, HOST:PORT, if
                          --coordinator does not say it (default 127.0.0.1:7600)

Exit codes:
  0  done; of a job that was waited for: COMPLETED
  1  failed in another way than those below
  2  refused: the command line, the job file or the job is wrong, or does not
     go with the state of things
  3  the job that was waited for FAILED
  4  the job that was waited for was CANCELLED
  5  the coordinator does not answer
  6  there is no such job
  128 + n  ended by signal n: 130 after Ctrl-C, 143 after SIGTERM

Ctrl-C of watch or submit --watch ends the watching and not the job.)";

// Says which command a misspelt one might have meant; false if `args` names a
// known one, or none.
bool RefuseUnknownCommand(const CLI::App& app,
                          const std::vector<std::string>& args,
                          Environment& env) {
  if (args[0].empty() || args[0][0] == '-') return false;
  std::vector<std::string> names;
  for (const CLI::App* command :
       app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
    if (names.back() == args[0]) return false;
  }
  const auto near = NearestNames(args[0], names);
  env.err << "lockstep: error: no such command: " << OneLine(args[0])
          << (near.empty()
                  ? absl::StrCat("; there are ", absl::StrJoin(names, ", "))
                  : absl::StrCat("; did you mean ", JoinWithOr(near), "?"))
          << std::endl;
  return true;
}

}  // namespace

int RunLockstep(const std::vector<std::string>& args, Environment& env) {
  CLI::App app(kAbout, "lockstep");
  CommandLine line{env};
  app.require_subcommand(1);
  app.footer(kFooter);
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_version_flag("--version", kVersion);
  AddRunCommand(&app, &line);
  AddPlanCommand(&app, &line);
  AddJobCommands(&app, &line);
  AddMonitorCommands(&app, &line);
  AddCheckpointCommands(&app, &line);
  AddModelCommands(&app, &line);

  if (args.empty()) {
    env.err << app.help() << std::flush;
    return kExitUsage;
  }
  if (RefuseUnknownCommand(app, args, env)) return kExitUsage;
  try {
    // The parser takes arguments from the end.
    app.parse(std::vector<std::string>(args.rbegin(), args.rend()));
  } catch (const CLI::CallForHelp&) {
    env.out << app.help() << std::flush;
    return kExitOk;
  } catch (const CLI::CallForVersion&) {
    env.out << kVersion << std::endl;
    return kExitOk;
  } catch (const CLI::ParseError& e) {
    const auto commands = app.get_subcommands();
    env.err << "lockstep: error: " << OneLine(e.what()) << "\nlockstep: see "
            << absl::StrJoin(
                   {std::string("lockstep"),
                    commands.empty() ? std::string("--help")
                                     : commands[0]->get_name() + " --help"},
                   " ")
            << std::endl;
    return kExitUsage;
  }
  const int code = line.run();
  env.out << std::flush;
  if (!env.out && code < 128) {
    env.err << "lockstep: error: cannot write the output: is the disk full?"
            << std::endl;
    return code == kExitOk ? kExitFailure : code;
  }
  return code;
}

}  // namespace lockstep::cli
