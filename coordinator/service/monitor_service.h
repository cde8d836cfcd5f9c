// MonitorService, as monitor_service.proto says.
#ifndef COORDINATOR_SERVICE_MONITOR_SERVICE_H_
#define COORDINATOR_SERVICE_MONITOR_SERVICE_H_

#include "coordinator/service/board.h"
#include "coordinator/service/work_queue.h"
#include "coordinator/store/store.h"
#include "lockstep/v1/monitor_service.grpc.pb.h"

namespace lockstep {

// Thread-safe.  What reads the store does so on `readers`, so that gRPC's
// threads, which also serve workers, never wait for a disk.
class MonitorService final : public v1::MonitorService::CallbackService {
 public:
  // All must outlive this.
  MonitorService(Board& board, Store& store, WorkQueue& readers)
      : board_(board), store_(store), readers_(readers) {}

  grpc::ServerUnaryReactor* ListWorkers(
      grpc::CallbackServerContext* context,
      const v1::ListWorkersRequest* request,
      v1::ListWorkersResponse* response) override;
  grpc::ServerUnaryReactor* ListStepMetrics(
      grpc::CallbackServerContext* context,
      const v1::ListStepMetricsRequest* request,
      v1::ListStepMetricsResponse* response) override;
  grpc::ServerWriteReactor<v1::WatchStepMetricsResponse>* WatchStepMetrics(
      grpc::CallbackServerContext* context,
      const v1::WatchStepMetricsRequest* request) override;
  grpc::ServerUnaryReactor* GetStragglers(
      grpc::CallbackServerContext* context,
      const v1::GetStragglersRequest* request,
      v1::GetStragglersResponse* response) override;

 private:
  Board& board_;
  Store& store_;
  WorkQueue& readers_;
};

}  // namespace lockstep

#endif  // COORDINATOR_SERVICE_MONITOR_SERVICE_H_
