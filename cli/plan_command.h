// plan.
#ifndef CLI_PLAN_COMMAND_H_
#define CLI_PLAN_COMMAND_H_

#include "CLI/CLI.hpp"
#include "cli/command_line.h"

namespace lockstep::cli {

void AddPlanCommand(CLI::App* app, CommandLine* line);

}  // namespace lockstep::cli

#endif  // CLI_PLAN_COMMAND_H_
