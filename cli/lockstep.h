// The `lockstep` command, all but its process.
#ifndef CLI_LOCKSTEP_H_
#define CLI_LOCKSTEP_H_

#include <string>
#include <vector>

#include "cli/environment.h"

namespace lockstep::cli {

// Runs one command line, `args` without the program's name, and returns its
// exit code (ExitCode).  Never ends the process.
int RunLockstep(const std::vector<std::string>& args, Environment& env);

}  // namespace lockstep::cli

#endif  // CLI_LOCKSTEP_H_
