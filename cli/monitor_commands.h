// workers, metrics, stragglers.
#ifndef CLI_MONITOR_COMMANDS_H_
#define CLI_MONITOR_COMMANDS_H_

#include "CLI/CLI.hpp"
#include "cli/command_line.h"

namespace lockstep::cli {

void AddMonitorCommands(CLI::App* app, CommandLine* line);

}  // namespace lockstep::cli

#endif  // CLI_MONITOR_COMMANDS_H_
