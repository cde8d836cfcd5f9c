// hash, sample: what is done with saved models, without a
// coordinator.
#ifndef CLI_MODEL_COMMANDS_H_
#define CLI_MODEL_COMMANDS_H_

#include "CLI/CLI.hpp"
#include "cli/command_line.h"

namespace lockstep::cli {

void AddModelCommands(CLI::App* app, CommandLine* line);

}  // namespace lockstep::cli

#endif  // CLI_MODEL_COMMANDS_H_
