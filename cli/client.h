// The coordinator, as commands call it.
//
// Calls that the coordinator could not take (UNAVAILABLE) are made again, with
// growing pauses, until the time-out has passed since the call began; every
// call of the API is safe to repeat, a submission by its request id.
//
// A watch outlives the coordinator's restarts: it asks again where its stream
// ends, and gives up as a call does.  Its streams are renewed every minute, so
// that a coordinator that vanished without closing them is noticed.
#ifndef CLI_CLIENT_H_
#define CLI_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "lockstep/v1/job.pb.h"
#include "lockstep/v1/job_service.pb.h"
#include "lockstep/v1/monitor_service.pb.h"

namespace lockstep::cli {

// Thread-safe; but notices are given by the thread that calls.
class Client {
 public:
  struct Options {
    // HOST:PORT.
    std::string coordinator;

    // Of one call with all its repetitions.  Positive.
    absl::Duration timeout = absl::Seconds(10);

    // Told, once per call, that the coordinator does not answer and is asked
    // again.
    std::function<void(const std::string&)> notice = [](const std::string&) {};
  };

  // Errors:
  //   InvalidArgument: `coordinator` is not HOST:PORT.
  static absl::StatusOr<std::unique_ptr<Client>> Create(Options options,
                                                        Clock& clock);
  ~Client();

  // Errors of all calls, besides those that the API's comments list:
  //   Unavailable: the coordinator did not answer in time; the message says
  //     what to check.
  //   Cancelled: Cancel() was called.

  absl::StatusOr<v1::Job> SubmitJob(const v1::SubmitJobRequest& request);
  absl::StatusOr<v1::PlanJobResponse> PlanJob(
      const v1::PlanJobRequest& request);
  absl::StatusOr<v1::Job> GetJob(const std::string& name);
  absl::StatusOr<v1::Job> CancelJob(const v1::CancelJobRequest& request);
  absl::StatusOr<v1::GetStragglersResponse> GetStragglers(
      const v1::GetStragglersRequest& request);

  // All pages of the request's list, as one; at most `count_max` jobs.
  absl::StatusOr<v1::ListJobsResponse> ListJobs(v1::ListJobsRequest request,
                                                int64_t count_max);
  absl::StatusOr<v1::ListWorkersResponse> ListWorkers();

  // Hands over page after page, in order.
  absl::Status ListStepMetrics(
      v1::ListStepMetricsRequest request,
      const std::function<void(const v1::StepMetrics&)>& on_row);

  // Hands over the job as it stands, then whenever it differs from what was
  // handed over last; returns it in its final state.
  absl::StatusOr<v1::Job> WatchJob(
      const std::string& name,
      const std::function<void(const v1::Job&)>& on_change);

  // Hands over each row once, as it arrives, until the job has ended.  A row of
  // a later generation comes again, for a step that was taken again.
  // `on_dropped` is told how many rows the coordinator left out, when it did.
  absl::Status WatchStepMetrics(
      const std::string& job, int64_t first_step,
      const std::function<void(const v1::StepMetrics&)>& on_row,
      const std::function<void(int64_t)>& on_dropped);

  // Ends every call under way, and every later one, with Cancelled.
  void Cancel();

 private:
  class Impl;
  explicit Client(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::cli

#endif  // CLI_CLIENT_H_
