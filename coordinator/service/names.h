// Resource names: `jobs/{job}` and `workers/{worker}`.
#ifndef COORDINATOR_SERVICE_NAMES_H_
#define COORDINATOR_SERVICE_NAMES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/ids.h"
#include "common/printable.h"

namespace lockstep {

inline std::string JobName(const JobId& job) {
  return absl::StrCat("jobs/", job.value);
}

inline std::string WorkerName(const WorkerId& worker) {
  return absl::StrCat("workers/", worker.value);
}

// `field` is what the message calls it.
//
// Errors:
//   InvalidArgument: `name` has not the form `jobs/{job}`.
inline absl::StatusOr<JobId> ParseJobName(absl::string_view field,
                                          absl::string_view name) {
  constexpr absl::string_view kPrefix = "jobs/";
  if (name.substr(0, kPrefix.size()) == kPrefix &&
      IsResourceId(name.substr(kPrefix.size()))) {
    return JobId{std::string(name.substr(kPrefix.size()))};
  }
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": expected jobs/{job}, got ", Quoted(name)));
}

inline absl::Status NoSuchJob(const JobId& job) {
  return absl::NotFoundError(
      absl::StrCat("no job has the name jobs/", job.value));
}

}  // namespace lockstep

#endif  // COORDINATOR_SERVICE_NAMES_H_
