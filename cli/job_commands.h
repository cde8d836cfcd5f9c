// submit, get, list, watch, cancel.
#ifndef CLI_JOB_COMMANDS_H_
#define CLI_JOB_COMMANDS_H_

#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "cli/client.h"
#include "cli/command_line.h"
#include "cli/job_file.h"

namespace lockstep::cli {

void AddJobCommands(CLI::App* app, CommandLine* line);

// Adds FILE and --set to `command`, which hold a job together.
struct JobFileOptions {
  std::string path;
  std::vector<std::string> assignments;
};
void AddJobFileOptions(CLI::App* command, JobFileOptions* options);

// Reads the file and applies the assignments.
absl::StatusOr<JobFile> ReadJobFile(const JobFileOptions& options,
                                    const Environment& env);

// Shows the job until it has ended; the exit code says how.  Prints why it
// failed.
int Watch(Client& client, const std::string& name, Environment& env);

// Says how an ended job ended, on `err` if it failed; its exit code.
int SayHowItEnded(const v1::Job& job, Environment& env);

}  // namespace lockstep::cli

#endif  // CLI_JOB_COMMANDS_H_
