// metrics: what the ranks of a job reported, step by step.
#ifndef CLI_METRICS_COMMAND_H_
#define CLI_METRICS_COMMAND_H_

#include "CLI/CLI.hpp"
#include "cli/command_line.h"

namespace lockstep::cli {

void AddMetricsCommand(CLI::App* app, CommandLine* line);

}  // namespace lockstep::cli

#endif  // CLI_METRICS_COMMAND_H_
