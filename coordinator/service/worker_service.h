// WorkerService, as worker_service.proto says.
#ifndef COORDINATOR_SERVICE_WORKER_SERVICE_H_
#define COORDINATOR_SERVICE_WORKER_SERVICE_H_

#include "coordinator/service/shell.h"
#include "lockstep/v1/worker_service.grpc.pb.h"

namespace lockstep {

// Thread-safe.
class WorkerService final : public v1::WorkerService::CallbackService {
 public:
  // Both must outlive this.
  WorkerService(Shell& shell, Clock& clock) : shell_(shell), clock_(clock) {}

  grpc::ServerBidiReactor<v1::WorkerMessage, v1::CoordinatorMessage>* Session(
      grpc::CallbackServerContext* context) override;

 private:
  Shell& shell_;
  Clock& clock_;
};

}  // namespace lockstep

#endif  // COORDINATOR_SERVICE_WORKER_SERVICE_H_
