#include "cli/client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cli/exit_code.h"
#include "cli/text.h"
#include "common/mutex.h"
#include "common/printable.h"
#include "common/status.h"
#include "lockstep/v1/job_service.grpc.pb.h"
#include "lockstep/v1/monitor_service.grpc.pb.h"

namespace lockstep::cli {
namespace {

constexpr absl::Duration kPauseMin = absl::Milliseconds(50);
constexpr absl::Duration kPauseMax = absl::Seconds(2);

// How long a stream may go on without being renewed.
constexpr absl::Duration kStreamMax = absl::Minutes(1);

// Steps by which a rank's rows may come later than another's and still be told
// from rows that came before.
constexpr int64_t kStepSpread = 4096;

absl::Status ToStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      status.error_message());
}

// HOST:PORT, also [IPv6]:PORT.
bool IsAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  int port = 0;
  return colon != std::string::npos && colon > 0 &&
         absl::SimpleAtoi(address.substr(colon + 1), &port) && port >= 1 &&
         port <= 65535 && IsPrintableUtf8(address) &&
         address.find_first_of("/ ") == std::string::npos;
}

// Pauses that double up to a bound.
class Pauses {
 public:
  absl::Duration Next() {
    const absl::Duration pause = next_;
    next_ = std::min(2 * next_, kPauseMax);
    return pause;
  }

 private:
  absl::Duration next_ = kPauseMin;
};

}  // namespace

class Client::Impl {
 public:
  Impl(Options options, Clock& clock)
      : options_(std::move(options)), clock_(clock) {
    grpc::ChannelArguments arguments;
    // The pauses between attempts are ours: a channel that waits for longer
    // would answer them without having tried.
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
    // A proxy for web pages has no business between these two.
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    const auto channel = grpc::CreateCustomChannel(
        options_.coordinator, grpc::InsecureChannelCredentials(), arguments);
    jobs_ = v1::JobService::NewStub(channel);
    monitor_ = v1::MonitorService::NewStub(channel);
  }

  v1::JobService::Stub& jobs() { return *jobs_; }
  v1::MonitorService::Stub& monitor() { return *monitor_; }

  // One call, repeated while the coordinator is unavailable.
  template <typename Stub, typename Request, typename Response>
  absl::StatusOr<Response> Call(
      Stub& stub,
      grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                   Response*),
      const Request& request) {
    const Instant deadline = clock_.Now() + options_.timeout;
    Pauses pauses;
    bool told = false;
    std::string why = "no answer";
    for (;;) {
      Response response;
      absl::Status status = WithContext(
          deadline - clock_.Now(), [&](grpc::ClientContext* context) {
            return ToStatus((stub.*method)(context, request, &response));
          });
      if (status.ok()) return response;
      if (status.code() == absl::StatusCode::kDeadlineExceeded) {
        return Unreachable(why);
      }
      if (status.code() != absl::StatusCode::kUnavailable) return status;
      why = std::string(status.message());
      const absl::Duration left = deadline - clock_.Now();
      if (left <= absl::ZeroDuration()) return Unreachable(why);
      if (!std::exchange(told, true)) {
        options_.notice(
            absl::StrCat("coordinator ", options_.coordinator,
                         " does not answer (", OneLine(status.message()),
                         "); asking again for ", DurationText(left)));
      }
      // Shorter towards the end: it may come back at the last moment.
      RETURN_IF_ERROR(
          Pause(std::min(pauses.Next(), std::max(left / 2, kPauseMin))));
    }
  }

  // Opens streams one after the other and hands over what they bring, until
  // `on_message` says that nothing more is to come, or one ends with OK and
  // `ends_with_ok` is set.
  template <typename Response>
  absl::Status Stream(
      const std::string& job, bool ends_with_ok,
      const std::function<std::unique_ptr<grpc::ClientReader<Response>>(
          grpc::ClientContext*)>& open,
      const std::function<bool(const Response&)>& on_message) {
    Pauses pauses;
    Instant silent_since = clock_.Now();
    for (;;) {
      // Waits for the coordinator as any call does, and knows the job.
      v1::GetJobRequest request;
      request.set_name(job);
      RETURN_IF_ERROR(
          Call(*jobs_, &v1::JobService::Stub::GetJob, request).status());
      bool done = false;
      bool spoke = false;
      const absl::Status status =
          WithContext(kStreamMax, [&](grpc::ClientContext* context) {
            const auto reader = open(context);
            Response response;
            while (!done && reader->Read(&response)) {
              spoke = true;
              done = !on_message(response);
            }
            if (done) context->TryCancel();
            return ToStatus(reader->Finish());
          });
      if (done || (status.ok() && ends_with_ok)) return absl::OkStatus();
      if (!status.ok() && status.code() != absl::StatusCode::kUnavailable &&
          status.code() != absl::StatusCode::kDeadlineExceeded) {
        return status;
      }
      if (spoke || status.code() == absl::StatusCode::kDeadlineExceeded) {
        pauses = Pauses();
        silent_since = clock_.Now();
      } else if (clock_.Now() - silent_since >= options_.timeout) {
        return Unreachable(status.ok() ? "it ends every watch at once"
                                       : status.message());
      }
      RETURN_IF_ERROR(Pause(pauses.Next()));
    }
  }

  void Cancel() {
    MutexLock lock(&mutex_);
    cancelled_ = true;
    for (grpc::ClientContext* context : contexts_) context->TryCancel();
    changed_.SignalAll();
  }

 private:
  absl::Status Cancelled() const { return absl::CancelledError("interrupted"); }

  absl::Status Unreachable(absl::string_view why) const {
    return absl::UnavailableError(absl::StrCat(
        "coordinator ", options_.coordinator, " did not answer within ",
        absl::FormatDuration(options_.timeout), " (", OneLine(why),
        "): is lockstep-coordinator running there?  --coordinator HOST:PORT "
        "or LOCKSTEP_COORDINATOR names another, --timeout waits for longer"));
  }

  // Runs `call` with a context that Cancel() reaches.
  template <typename Function>
  absl::Status WithContext(absl::Duration limit, const Function& call) {
    grpc::ClientContext context;
    context.set_deadline(
        std::chrono::system_clock::now() +
        absl::ToChronoNanoseconds(std::max(limit, absl::ZeroDuration())));
    {
      MutexLock lock(&mutex_);
      if (cancelled_) return Cancelled();
      contexts_.insert(&context);
    }
    const absl::Status status = call(&context);
    MutexLock lock(&mutex_);
    contexts_.erase(&context);
    if (cancelled_) return Cancelled();
    // A server that stops without waiting ends its calls like this.
    if (status.code() == absl::StatusCode::kCancelled) {
      return absl::UnavailableError("the coordinator ended the call");
    }
    return status;
  }

  absl::Status Pause(absl::Duration pause) {
    const Instant until = clock_.Now() + pause;
    MutexLock lock(&mutex_);
    while (!cancelled_) {
      const absl::Duration left = until - clock_.Now();
      if (left <= absl::ZeroDuration()) return absl::OkStatus();
      changed_.WaitFor(&mutex_, left);
    }
    return Cancelled();
  }

  const Options options_;
  Clock& clock_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
  std::unique_ptr<v1::MonitorService::Stub> monitor_;

  Mutex mutex_;
  CondVar changed_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<grpc::ClientContext*> contexts_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<std::unique_ptr<Client>> Client::Create(Options options,
                                                       Clock& clock) {
  if (!IsAddress(options.coordinator)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "coordinator: expected HOST:PORT, such as 127.0.0.1:7600, got ",
        Quoted(options.coordinator),
        " (--coordinator, or else LOCKSTEP_COORDINATOR, says it)"));
  }
  return std::unique_ptr<Client>(
      new Client(std::make_unique<Impl>(std::move(options), clock)));
}

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::~Client() = default;

void Client::Cancel() { impl_->Cancel(); }

absl::StatusOr<v1::Job> Client::SubmitJob(const v1::SubmitJobRequest& request) {
  return impl_->Call(impl_->jobs(), &v1::JobService::Stub::SubmitJob, request);
}

absl::StatusOr<v1::PlanJobResponse> Client::PlanJob(
    const v1::PlanJobRequest& request) {
  return impl_->Call(impl_->jobs(), &v1::JobService::Stub::PlanJob, request);
}

absl::StatusOr<v1::Job> Client::GetJob(const std::string& name) {
  v1::GetJobRequest request;
  request.set_name(name);
  return impl_->Call(impl_->jobs(), &v1::JobService::Stub::GetJob, request);
}

absl::StatusOr<v1::Job> Client::CancelJob(const v1::CancelJobRequest& request) {
  return impl_->Call(impl_->jobs(), &v1::JobService::Stub::CancelJob, request);
}

absl::StatusOr<v1::GetStragglersResponse> Client::GetStragglers(
    const v1::GetStragglersRequest& request) {
  return impl_->Call(impl_->monitor(), &v1::MonitorService::Stub::GetStragglers,
                     request);
}

absl::StatusOr<v1::ListJobsResponse> Client::ListJobs(
    v1::ListJobsRequest request, int64_t count_max) {
  v1::ListJobsResponse all;
  while (all.jobs_size() < count_max) {
    request.set_page_size(static_cast<int32_t>(
        std::min<int64_t>(1000, count_max - all.jobs_size())));
    ASSIGN_OR_RETURN(
        v1::ListJobsResponse page,
        impl_->Call(impl_->jobs(), &v1::JobService::Stub::ListJobs, request));
    all.mutable_jobs()->MergeFrom(page.jobs());
    if (page.next_page_token().empty()) break;
    request.set_page_token(page.next_page_token());
  }
  return all;
}

absl::StatusOr<v1::ListWorkersResponse> Client::ListWorkers() {
  v1::ListWorkersResponse all;
  v1::ListWorkersRequest request;
  request.set_page_size(1000);
  do {
    ASSIGN_OR_RETURN(
        v1::ListWorkersResponse page,
        impl_->Call(impl_->monitor(), &v1::MonitorService::Stub::ListWorkers,
                    request));
    all.mutable_workers()->MergeFrom(page.workers());
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  return all;
}

absl::Status Client::ListStepMetrics(
    v1::ListStepMetricsRequest request,
    const std::function<void(const v1::StepMetrics&)>& on_row) {
  request.set_page_size(1000);
  do {
    ASSIGN_OR_RETURN(
        const v1::ListStepMetricsResponse page,
        impl_->Call(impl_->monitor(),
                    &v1::MonitorService::Stub::ListStepMetrics, request));
    for (const v1::StepMetrics& row : page.step_metrics()) on_row(row);
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  return absl::OkStatus();
}

absl::StatusOr<v1::Job> Client::WatchJob(
    const std::string& name,
    const std::function<void(const v1::Job&)>& on_change) {
  v1::WatchJobRequest request;
  request.set_name(name);
  std::string last;
  v1::Job job;
  RETURN_IF_ERROR(impl_->Stream<v1::WatchJobResponse>(
      name, /*ends_with_ok=*/false,
      [&](grpc::ClientContext* context) {
        return impl_->jobs().WatchJob(context, request);
      },
      [&](const v1::WatchJobResponse& response) {
        job = response.job();
        std::string bytes = job.SerializeAsString();
        if (bytes != last) on_change(job);
        last = std::move(bytes);
        return !IsFinal(job.state());
      }));
  return job;
}

absl::Status Client::WatchStepMetrics(
    const std::string& job, int64_t first_step,
    const std::function<void(const v1::StepMetrics&)>& on_row,
    const std::function<void(int64_t)>& on_dropped) {
  // The generation of the row handed over for a step and rank.
  std::map<std::pair<int64_t, int32_t>, int64_t> seen;
  int64_t from = first_step;
  int64_t dropped_before = 0;
  return impl_->Stream<v1::WatchStepMetricsResponse>(
      job, /*ends_with_ok=*/true,
      [&](grpc::ClientContext* context) {
        // Streams count for themselves what they leave out.
        dropped_before = 0;
        if (!seen.empty()) from = std::max(from, seen.begin()->first.first);
        v1::WatchStepMetricsRequest request;
        request.set_job(job);
        request.set_first_step(from);
        return impl_->monitor().WatchStepMetrics(context, request);
      },
      [&](const v1::WatchStepMetricsResponse& response) {
        if (response.dropped_count() > dropped_before) {
          on_dropped(response.dropped_count() - dropped_before);
          dropped_before = response.dropped_count();
        }
        for (const v1::StepMetrics& row : response.step_metrics()) {
          int64_t& generation = seen[{row.step(), row.rank()}];
          if (row.generation() <= generation) continue;
          generation = row.generation();
          on_row(row);
          while (seen.begin()->first.first < row.step() - kStepSpread) {
            seen.erase(seen.begin());
          }
        }
        return true;
      });
}

}  // namespace lockstep::cli
