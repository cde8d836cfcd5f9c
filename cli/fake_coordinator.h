// A coordinator without workers, for tests: what it says is scripted.
#ifndef CLI_FAKE_COORDINATOR_H_
#define CLI_FAKE_COORDINATOR_H_

#include <memory>
#include <string>
#include <vector>

#include "lockstep/v1/job.pb.h"
#include "lockstep/v1/job_service.pb.h"
#include "lockstep/v1/monitor_service.pb.h"

namespace lockstep::cli {

// Serves JobService and MonitorService on a port of 127.0.0.1, from its
// construction to its destruction.  Specs are resolved, requests idempotent, as
// the API says.  Thread-safe.
class FakeCoordinator {
 public:
  // On `port`, or on a free one.
  explicit FakeCoordinator(int port = 0);
  ~FakeCoordinator();

  int port() const;
  std::string address() const;

  // A job that is there from the start.
  void AddJob(const v1::Job& job);

  // What becomes of any job that is watched: merged into it, one after the
  // other, each sent to the watcher.  A watch that breaks goes on with the
  // next.
  void SetCourse(std::vector<v1::Job> course);

  void SetWorkers(std::vector<v1::Worker> workers);
  void SetStepMetrics(std::vector<v1::StepMetrics> rows);
  void SetStragglers(v1::GetStragglersResponse response);

  // No page is longer than this.
  void SetPageMax(int page_max);

  // The next `count` calls are not carried out, and answered UNAVAILABLE.
  void RefuseNext(int count);

  // The next `count` calls are carried out, and answered UNAVAILABLE.
  void LoseNextAnswers(int count);

  // Calls are taken and never answered.
  void Hang();

  // The next stream breaks (UNAVAILABLE) when it has sent so many messages.
  void BreakNextStreamAfter(int messages);

  // What has come so far.
  std::vector<v1::SubmitJobRequest> submissions() const;
  std::vector<v1::CancelJobRequest> cancellations() const;
  std::vector<v1::GetStragglersRequest> straggler_requests() const;
  std::vector<v1::WatchStepMetricsRequest> metric_watches() const;
  int call_count() const;
  int job_count() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::cli

#endif  // CLI_FAKE_COORDINATOR_H_
