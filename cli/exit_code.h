// How a command ends, for scripts.
#ifndef CLI_EXIT_CODE_H_
#define CLI_EXIT_CODE_H_

#include "absl/status/status.h"
#include "lockstep/v1/job.pb.h"

namespace lockstep::cli {

// Part of the interface: `lockstep --help` lists them.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailure = 1,       // None of the others.
  kExitUsage = 2,         // The command line, the job file or the job is wrong,
                          // or does not go with the state of things.
  kExitJobFailed = 3,     // The job that was waited for failed.
  kExitJobCancelled = 4,  // The job that was waited for was cancelled.
  kExitUnreachable = 5,   // The coordinator does not answer.
  kExitNotFound = 6,      // There is no such job.
};

ExitCode ExitCodeOf(const absl::Status& status);

// How a job that was waited for ended; kExitOk while it has not.
ExitCode ExitCodeOf(const v1::Job& job);

// Whether the job stays in its state for ever.
bool IsFinal(v1::Job::State state);

}  // namespace lockstep::cli

#endif  // CLI_EXIT_CODE_H_
