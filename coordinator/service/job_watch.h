// A client that watches a job.
#ifndef COORDINATOR_SERVICE_JOB_WATCH_H_
#define COORDINATOR_SERVICE_JOB_WATCH_H_

#include <string>

#include "coordinator/service/board.h"
#include "grpcpp/support/server_callback.h"
#include "lockstep/v1/job_service.pb.h"

namespace lockstep {

// The stream of a WatchJob: the job as it is, then its newest form whenever it
// changed, at most ten times a second.  A client that reads slowly misses forms
// in between, never the last.  Deletes itself.  `board` must outlive it.
grpc::ServerWriteReactor<v1::WatchJobResponse>* StartJobWatch(
    Board& board, const std::string& job_name);

}  // namespace lockstep

#endif  // COORDINATOR_SERVICE_JOB_WATCH_H_
