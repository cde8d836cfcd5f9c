// checkpoints, verify, export: what is done with checkpoints, where they are.
#ifndef CLI_CHECKPOINT_COMMANDS_H_
#define CLI_CHECKPOINT_COMMANDS_H_

#include "CLI/CLI.hpp"
#include "cli/command_line.h"

namespace lockstep::cli {

void AddCheckpointCommands(CLI::App* app, CommandLine* line);

}  // namespace lockstep::cli

#endif  // CLI_CHECKPOINT_COMMANDS_H_
