// run: a coordinator, workers and one job, all on this machine.
#ifndef CLI_RUN_COMMAND_H_
#define CLI_RUN_COMMAND_H_

#include "CLI/CLI.hpp"
#include "cli/command_line.h"

namespace lockstep::cli {

void AddRunCommand(CLI::App* app, CommandLine* line);

}  // namespace lockstep::cli

#endif  // CLI_RUN_COMMAND_H_
