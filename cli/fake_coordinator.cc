#include "cli/fake_coordinator.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/job_plan.h"
#include "common/mutex.h"
#include "common/spec.h"
#include "lockstep/v1/job_service.grpc.pb.h"
#include "lockstep/v1/monitor_service.grpc.pb.h"

namespace lockstep::cli {
namespace {

grpc::Status Unavailable() {
  return {grpc::StatusCode::UNAVAILABLE, "scripted"};
}

bool IsFinalState(v1::Job::State state) {
  return state == v1::Job::COMPLETED || state == v1::Job::CANCELLED ||
         state == v1::Job::FAILED;
}

}  // namespace

class FakeCoordinator::Impl final : public v1::JobService::Service,
                                    public v1::MonitorService::Service {
 public:
  explicit Impl(int port) {
    grpc::ServerBuilder builder;
    // Not to share a port with another that listens already.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", port),
                             grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(static_cast<v1::JobService::Service*>(this));
    builder.RegisterService(static_cast<v1::MonitorService::Service*>(this));
    server_ = builder.BuildAndStart();
    LS_CHECK(server_ != nullptr && port_ > 0);
  }

  ~Impl() override {
    {
      MutexLock lock(&mutex);
      stopping = true;
      changed.SignalAll();
    }
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }

  int port() const { return port_; }

  // --- JobService

  grpc::Status SubmitJob(grpc::ServerContext* context,
                         const v1::SubmitJobRequest* request,
                         v1::Job* response) override {
    return Carry(context, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
      submissions.push_back(*request);
      const auto resolved = ResolveJobSpec(request->spec());
      if (!resolved.ok()) {
        return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                            std::string(resolved.status().message()));
      }
      auto [entry, fresh] = by_request.emplace(
          request->request_id(), absl::StrCat("jobs/job-", jobs.size() + 1));
      if (fresh) {
        v1::Job& job = jobs[entry->second];
        job.set_name(entry->second);
        *job.mutable_spec() = *resolved;
        job.set_state(v1::Job::QUEUED);
      }
      v1::Job& job = jobs[entry->second];
      if (job.spec().SerializeAsString() != resolved->SerializeAsString()) {
        return grpc::Status(grpc::StatusCode::ALREADY_EXISTS,
                            "request_id was used with another spec");
      }
      *response = job;
      return grpc::Status::OK;
    });
  }

  grpc::Status PlanJob(grpc::ServerContext* context,
                       const v1::PlanJobRequest* request,
                       v1::PlanJobResponse* response) override {
    return Carry(context, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
      const auto resolved = ResolveJobSpec(request->spec());
      if (!resolved.ok()) {
        return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                            std::string(resolved.status().message()));
      }
      v1::PlannedWorker worker = PlannedWorkerFor(*resolved, workers);
      worker.MergeFrom(request->worker());
      *response->mutable_plan() =
          lockstep::PlanJob(*resolved, *ModelOf(*resolved), worker);
      return grpc::Status::OK;
    });
  }

  grpc::Status GetJob(grpc::ServerContext* context,
                      const v1::GetJobRequest* request,
                      v1::Job* response) override {
    return Carry(context, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
      const v1::Job* job = Find(request->name());
      if (job == nullptr) return NotFound(request->name());
      *response = *job;
      return grpc::Status::OK;
    });
  }

  grpc::Status ListJobs(grpc::ServerContext* context,
                        const v1::ListJobsRequest* request,
                        v1::ListJobsResponse* response) override {
    return Carry(context, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
      std::vector<v1::Job> found;
      for (const auto& [name, job] : jobs) {
        const auto& states = request->states();
        if (states.empty() ||
            std::count(states.begin(), states.end(), job.state()) > 0) {
          found.insert(found.begin(), job);
        }
      }
      response->set_next_page_token(
          Page(found, request->page_token(), request->page_size(),
               [&](const v1::Job& job) { *response->add_jobs() = job; }));
      return grpc::Status::OK;
    });
  }

  grpc::Status CancelJob(grpc::ServerContext* context,
                         const v1::CancelJobRequest* request,
                         v1::Job* response) override {
    return Carry(context, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
      cancellations.push_back(*request);
      v1::Job* job = Find(request->name());
      if (job == nullptr) return NotFound(request->name());
      if (IsFinalState(job->state()) && job->state() != v1::Job::CANCELLED) {
        return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION,
                            absl::StrCat(job->name(), " has ended before"));
      }
      job->set_state(v1::Job::CANCELLED);
      job->set_state_reason(request->reason());
      changed.SignalAll();
      *response = *job;
      return grpc::Status::OK;
    });
  }

  grpc::Status WatchJob(
      grpc::ServerContext* context, const v1::WatchJobRequest* request,
      grpc::ServerWriter<v1::WatchJobResponse>* writer) override {
    std::optional<int> left;
    const grpc::Status status =
        Carry(context, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
          left = std::exchange(stream_messages, std::nullopt);
          return Find(request->name()) == nullptr ? NotFound(request->name())
                                                  : grpc::Status::OK;
        });
    if (!status.ok()) return status;
    std::string sent;
    for (;;) {
      if (left && *left <= 0) return Unavailable();
      v1::WatchJobResponse response;
      {
        MutexLock lock(&mutex);
        v1::Job* job = Find(request->name());
        // As it stands first.
        while (job->SerializeAsString() == sent) {
          if (stopping || context->IsCancelled()) return Unavailable();
          if (!course.empty()) {
            job->MergeFrom(course.front());
            course.erase(course.begin());
          } else {
            changed.WaitFor(&mutex, absl::Milliseconds(20));
          }
        }
        *response.mutable_job() = *job;
      }
      sent = response.job().SerializeAsString();
      if (!writer->Write(response)) return Unavailable();
      if (left) --*left;
      if (IsFinalState(response.job().state())) return grpc::Status::OK;
    }
  }

  // --- MonitorService

  grpc::Status ListWorkers(grpc::ServerContext* context,
                           const v1::ListWorkersRequest* request,
                           v1::ListWorkersResponse* response) override {
    return Carry(context, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
      response->set_next_page_token(
          Page(workers, request->page_token(), request->page_size(),
               [&](const v1::Worker& w) { *response->add_workers() = w; }));
      return grpc::Status::OK;
    });
  }

  grpc::Status ListStepMetrics(grpc::ServerContext* context,
                               const v1::ListStepMetricsRequest* request,
                               v1::ListStepMetricsResponse* response) override {
    return Carry(context, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
      if (Find(request->job()) == nullptr) return NotFound(request->job());
      std::vector<v1::StepMetrics> found;
      for (const v1::StepMetrics& row : rows) {
        if (row.step() >= request->first_step() &&
            (!request->has_last_step() || row.step() <= request->last_step())) {
          found.push_back(row);
        }
      }
      response->set_next_page_token(Page(found, request->page_token(),
                                         request->page_size(),
                                         [&](const v1::StepMetrics& row) {
                                           *response->add_step_metrics() = row;
                                         }));
      return grpc::Status::OK;
    });
  }

  grpc::Status WatchStepMetrics(
      grpc::ServerContext* context, const v1::WatchStepMetricsRequest* request,
      grpc::ServerWriter<v1::WatchStepMetricsResponse>* writer) override {
    std::optional<int> left;
    std::vector<v1::StepMetrics> found;
    const grpc::Status status =
        Carry(context, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
          metric_watches.push_back(*request);
          left = std::exchange(stream_messages, std::nullopt);
          for (const v1::StepMetrics& row : rows) {
            if (row.step() >= request->first_step()) found.push_back(row);
          }
          return Find(request->job()) == nullptr ? NotFound(request->job())
                                                 : grpc::Status::OK;
        });
    if (!status.ok()) return status;
    for (const v1::StepMetrics& row : found) {
      if (left && (*left)-- <= 0) return Unavailable();
      v1::WatchStepMetricsResponse response;
      *response.add_step_metrics() = row;
      // One row was lost before the last.
      if (&row == &found.back()) response.set_dropped_count(1);
      if (!writer->Write(response)) return Unavailable();
    }
    return grpc::Status::OK;
  }

  grpc::Status GetStragglers(grpc::ServerContext* context,
                             const v1::GetStragglersRequest* request,
                             v1::GetStragglersResponse* response) override {
    return Carry(context, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
      straggler_requests.push_back(*request);
      if (Find(request->job()) == nullptr) return NotFound(request->job());
      *response = stragglers;
      return grpc::Status::OK;
    });
  }

  mutable Mutex mutex;
  CondVar changed;
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  bool hanging ABSL_GUARDED_BY(mutex) = false;
  int refusals ABSL_GUARDED_BY(mutex) = 0;
  int losses ABSL_GUARDED_BY(mutex) = 0;
  int calls ABSL_GUARDED_BY(mutex) = 0;
  int page_max ABSL_GUARDED_BY(mutex) = 1000;
  std::optional<int> stream_messages ABSL_GUARDED_BY(mutex);
  std::map<std::string, v1::Job> jobs ABSL_GUARDED_BY(mutex);
  std::map<std::string, std::string> by_request ABSL_GUARDED_BY(mutex);
  std::vector<v1::Job> course ABSL_GUARDED_BY(mutex);
  std::vector<v1::Worker> workers ABSL_GUARDED_BY(mutex);
  std::vector<v1::StepMetrics> rows ABSL_GUARDED_BY(mutex);
  v1::GetStragglersResponse stragglers ABSL_GUARDED_BY(mutex);
  std::vector<v1::SubmitJobRequest> submissions ABSL_GUARDED_BY(mutex);
  std::vector<v1::CancelJobRequest> cancellations ABSL_GUARDED_BY(mutex);
  std::vector<v1::GetStragglersRequest> straggler_requests
      ABSL_GUARDED_BY(mutex);
  std::vector<v1::WatchStepMetricsRequest> metric_watches
      ABSL_GUARDED_BY(mutex);

 private:
  // Carries out a call as the script of failures says.
  template <typename Function>
  grpc::Status Carry(grpc::ServerContext* context, const Function& function) {
    MutexLock lock(&mutex);
    ++calls;
    while (hanging && !stopping && !context->IsCancelled()) {
      changed.WaitFor(&mutex, absl::Milliseconds(20));
    }
    if (refusals > 0) {
      --refusals;
      return Unavailable();
    }
    const grpc::Status status = function();
    if (losses > 0) {
      --losses;
      return Unavailable();
    }
    return status;
  }

  v1::Job* Find(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const auto found = jobs.find(name);
    return found == jobs.end() ? nullptr : &found->second;
  }

  static grpc::Status NotFound(const std::string& name) {
    return {grpc::StatusCode::NOT_FOUND, absl::StrCat("no such job: ", name)};
  }

  // Hands over one page of `all`; returns the next one's token.
  template <typename T, typename Function>
  std::string Page(const std::vector<T>& all, const std::string& token,
                   int page_size, const Function& add)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    size_t at = 0;
    if (!token.empty()) LS_CHECK(absl::SimpleAtoi(token, &at));
    const size_t size = static_cast<size_t>(
        std::min(page_size == 0 ? 100 : page_size, page_max));
    for (size_t n = 0; n < size && at < all.size(); ++n) add(all[at++]);
    return at < all.size() ? absl::StrCat(at) : "";
  }

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

FakeCoordinator::FakeCoordinator(int port)
    : impl_(std::make_unique<Impl>(port)) {}
FakeCoordinator::~FakeCoordinator() = default;

int FakeCoordinator::port() const { return impl_->port(); }

std::string FakeCoordinator::address() const {
  return absl::StrCat("127.0.0.1:", port());
}

void FakeCoordinator::AddJob(const v1::Job& job) {
  MutexLock lock(&impl_->mutex);
  impl_->jobs[job.name()] = job;
}

void FakeCoordinator::SetCourse(std::vector<v1::Job> course) {
  MutexLock lock(&impl_->mutex);
  impl_->course = std::move(course);
}

void FakeCoordinator::SetWorkers(std::vector<v1::Worker> workers) {
  MutexLock lock(&impl_->mutex);
  impl_->workers = std::move(workers);
}

void FakeCoordinator::SetStepMetrics(std::vector<v1::StepMetrics> rows) {
  MutexLock lock(&impl_->mutex);
  impl_->rows = std::move(rows);
}

void FakeCoordinator::SetStragglers(v1::GetStragglersResponse response) {
  MutexLock lock(&impl_->mutex);
  impl_->stragglers = std::move(response);
}

void FakeCoordinator::SetPageMax(int page_max) {
  MutexLock lock(&impl_->mutex);
  impl_->page_max = page_max;
}

void FakeCoordinator::RefuseNext(int count) {
  MutexLock lock(&impl_->mutex);
  impl_->refusals = count;
}

void FakeCoordinator::LoseNextAnswers(int count) {
  MutexLock lock(&impl_->mutex);
  impl_->losses = count;
}

void FakeCoordinator::Hang() {
  MutexLock lock(&impl_->mutex);
  impl_->hanging = true;
}

void FakeCoordinator::BreakNextStreamAfter(int messages) {
  MutexLock lock(&impl_->mutex);
  impl_->stream_messages = messages;
}

std::vector<v1::SubmitJobRequest> FakeCoordinator::submissions() const {
  MutexLock lock(&impl_->mutex);
  return impl_->submissions;
}

std::vector<v1::CancelJobRequest> FakeCoordinator::cancellations() const {
  MutexLock lock(&impl_->mutex);
  return impl_->cancellations;
}

std::vector<v1::GetStragglersRequest> FakeCoordinator::straggler_requests()
    const {
  MutexLock lock(&impl_->mutex);
  return impl_->straggler_requests;
}

std::vector<v1::WatchStepMetricsRequest> FakeCoordinator::metric_watches()
    const {
  MutexLock lock(&impl_->mutex);
  return impl_->metric_watches;
}

int FakeCoordinator::call_count() const {
  MutexLock lock(&impl_->mutex);
  return impl_->calls;
}

int FakeCoordinator::job_count() const {
  MutexLock lock(&impl_->mutex);
  return static_cast<int>(impl_->jobs.size());
}

}  // namespace lockstep::cli
