// The core's records as resources of the API.
#ifndef COORDINATOR_SERVICE_VIEWS_H_
#define COORDINATOR_SERVICE_VIEWS_H_

#include <optional>

#include "coordinator/core/records.h"
#include "lockstep/v1/job.pb.h"
#include "lockstep/v1/monitor_service.pb.h"

namespace lockstep {

// Sets all of `job` but `spec` and `progress`.
void FillJob(const JobRecord& record, v1::Job& job);

// `rank`: of its place, where it has one.
v1::Worker WorkerToProto(const WorkerView& view, std::optional<int> rank);

}  // namespace lockstep

#endif  // COORDINATOR_SERVICE_VIEWS_H_
