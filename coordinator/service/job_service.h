// JobService, as job_service.proto says.
#ifndef COORDINATOR_SERVICE_JOB_SERVICE_H_
#define COORDINATOR_SERVICE_JOB_SERVICE_H_

#include "coordinator/service/shell.h"
#include "lockstep/v1/job_service.grpc.pb.h"

namespace lockstep {

// Thread-safe.
class JobService final : public v1::JobService::CallbackService {
 public:
  // `shell` must outlive this.
  explicit JobService(Shell& shell) : shell_(shell) {}

  grpc::ServerUnaryReactor* SubmitJob(grpc::CallbackServerContext* context,
                                      const v1::SubmitJobRequest* request,
                                      v1::Job* response) override;
  grpc::ServerUnaryReactor* PlanJob(grpc::CallbackServerContext* context,
                                    const v1::PlanJobRequest* request,
                                    v1::PlanJobResponse* response) override;
  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context,
                                   const v1::GetJobRequest* request,
                                   v1::Job* response) override;
  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* context,
                                     const v1::ListJobsRequest* request,
                                     v1::ListJobsResponse* response) override;
  grpc::ServerUnaryReactor* CancelJob(grpc::CallbackServerContext* context,
                                      const v1::CancelJobRequest* request,
                                      v1::Job* response) override;
  grpc::ServerWriteReactor<v1::WatchJobResponse>* WatchJob(
      grpc::CallbackServerContext* context,
      const v1::WatchJobRequest* request) override;

 private:
  Shell& shell_;
};

}  // namespace lockstep

#endif  // COORDINATOR_SERVICE_JOB_SERVICE_H_
