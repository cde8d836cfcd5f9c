#include "cli/exit_code.h"

namespace lockstep::cli {

ExitCode ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kFailedPrecondition:
      return kExitUsage;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return kExitUnreachable;
    case absl::StatusCode::kNotFound:
      return kExitNotFound;
    default:
      return kExitFailure;
  }
}

ExitCode ExitCodeOf(const v1::Job& job) {
  switch (job.state()) {
    case v1::Job::FAILED:
      return kExitJobFailed;
    case v1::Job::CANCELLED:
      return kExitJobCancelled;
    default:
      return kExitOk;
  }
}

bool IsFinal(v1::Job::State state) {
  return state == v1::Job::COMPLETED || state == v1::Job::CANCELLED ||
         state == v1::Job::FAILED;
}

}  // namespace lockstep::cli
