// A client that watches a job's steps.
#ifndef COORDINATOR_SERVICE_STEP_WATCH_H_
#define COORDINATOR_SERVICE_STEP_WATCH_H_

#include "coordinator/service/board.h"
#include "coordinator/service/work_queue.h"
#include "coordinator/store/store.h"
#include "grpcpp/support/server_callback.h"
#include "lockstep/v1/monitor_service.pb.h"

namespace lockstep {

// Rows kept for a client that reads slower than they come.
inline constexpr int kWatchedRowsMax = 4096;

// The stream of a WatchStepMetrics: what is stored, page by page as the client
// takes it, then what comes, without gap or repeat.  Rows that come meanwhile
// wait, the newest kWatchedRowsMax of them.  Deletes itself.  The others must
// outlive it.
grpc::ServerWriteReactor<v1::WatchStepMetricsResponse>* StartStepWatch(
    Board& board, Store& store, WorkQueue& readers,
    const v1::WatchStepMetricsRequest& request);

}  // namespace lockstep

#endif  // COORDINATOR_SERVICE_STEP_WATCH_H_
