#include "coordinator/service/job_service.h"

#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/grpc_status.h"
#include "common/job_plan.h"
#include "common/printable.h"
#include "common/spec.h"
#include "common/spec_digest.h"
#include "common/status.h"
#include "coordinator/service/job_watch.h"
#include "coordinator/service/names.h"
#include "coordinator/service/page.h"

namespace lockstep {
namespace {

constexpr int kPageSize = 100;
constexpr int kPageSizeMax = 1000;
// Messages stay below the 4 MiB that gRPC takes unless told otherwise, so that
// any client can read any job, and any worker any assignment.
constexpr size_t kSpecBytesMax = 3 << 20;
constexpr size_t kPageBytesMax = 3 << 20;

constexpr size_t kRequestIdBytesMax = 128;
constexpr size_t kReasonBytesMax = 1000;

grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context,
                                 const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

// What the shell calls when a mutation is durable, or refused.
std::function<void(absl::StatusOr<JobSnapshot>)> AnswerLater(
    grpc::ServerUnaryReactor* reactor, v1::Job* response) {
  return [reactor, response](absl::StatusOr<JobSnapshot> job) {
    if (job.ok()) *response = **job;
    reactor->Finish(ToGrpcStatus(job.status()));
  };
}

absl::Status CheckRequestId(const std::string& id) {
  bool printable = id.size() <= kRequestIdBytesMax;
  for (const char c : id) printable &= c >= 0x20 && c <= 0x7E;
  if (printable && !id.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "request_id: expected 1 to ", kRequestIdBytesMax,
      " printable ASCII characters, got ", id.empty() ? "none" : Quoted(id)));
}

absl::StatusOr<JobRequest> ToJobRequest(const v1::SubmitJobRequest& request) {
  RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  if (!request.has_spec()) {
    return absl::InvalidArgumentError("spec: missing");
  }
  JobRequest job;
  job.request_id = request.request_id();
  v1::JobSpec asked = request.spec();
  // A retry may be made where the folder can be read, or cannot.
  asked.mutable_model()->clear_sizes();
  job.spec_digest = SpecDigest(asked);
  ASSIGN_OR_RETURN(job.spec, ResolveJobSpec(request.spec()));
  if (const size_t size = job.spec.ByteSizeLong(); size > kSpecBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "spec: expected at most ", kSpecBytesMax, " bytes serialized, got ",
        size, "; name fewer files, or by shorter paths"));
  }
  return job;
}

std::vector<v1::Worker> AllWorkers(const Board& board) {
  return board.ListWorkers("", std::numeric_limits<int>::max()).workers;
}

absl::Status PlanNow(const Board& board, const v1::PlanJobRequest& request,
                     v1::PlanJobResponse& response) {
  if (!request.has_spec()) {
    return absl::InvalidArgumentError("spec: missing");
  }
  ASSIGN_OR_RETURN(const v1::JobSpec spec, ResolveJobSpec(request.spec()));
  const std::optional<ModelConfig> model = ModelOf(spec);
  if (!model.has_value()) {
    return absl::FailedPreconditionError(
        "model.sizes: missing: the workers read the model's folder, and the "
        "coordinator does not know how large it is; `lockstep plan` fills it "
        "in where the folder can be read");
  }
  v1::PlannedWorker worker = PlannedWorkerFor(spec, AllWorkers(board));
  worker.MergeFrom(request.worker());  // What is 0 in it is not given.
  *response.mutable_plan() = lockstep::PlanJob(spec, *model, worker);
  return absl::OkStatus();
}

absl::Status ListJobs(const Board& board, const v1::ListJobsRequest& request,
                      v1::ListJobsResponse& response) {
  ASSIGN_OR_RETURN(const int size,
                   PageSize(request.page_size(), kPageSize, kPageSizeMax));
  std::set<v1::Job::State> states;
  for (const int state : request.states()) {
    if (!v1::Job::State_IsValid(state) || state == v1::Job::STATE_UNSPECIFIED) {
      return absl::InvalidArgumentError(absl::StrCat(
          "states[", states.size(), "]: expected a job's state, got ", state));
    }
    states.insert(static_cast<v1::Job::State>(state));
  }
  const std::string list = absl::StrCat("jobs ", absl::StrJoin(states, ","));
  ASSIGN_OR_RETURN(const std::string place,
                   ParsePageToken(list, request.page_token()));
  std::optional<int64_t> before;
  if (!place.empty()) {
    before.emplace();
    if (!absl::SimpleAtoi(place, &*before)) {
      return absl::InvalidArgumentError("page_token: damaged");
    }
  }
  const Board::JobPage page =
      board.ListJobs(before, states, size, kPageBytesMax);
  for (const JobSnapshot& job : page.jobs) *response.add_jobs() = *job;
  if (page.next.has_value()) {
    response.set_next_page_token(MakePageToken(list, absl::StrCat(*page.next)));
  }
  return absl::OkStatus();
}

}  // namespace

grpc::ServerUnaryReactor* JobService::SubmitJob(
    grpc::CallbackServerContext* context, const v1::SubmitJobRequest* request,
    v1::Job* response) {
  absl::StatusOr<JobRequest> job = ToJobRequest(*request);
  if (!job.ok()) return Answer(context, job.status());
  if (const auto model = ModelOf(job->spec); model.has_value()) {
    // With more workers than it starts on, the table would not fit a status.
    v1::JobSpec least = job->spec;
    least.mutable_parallel()->set_max_workers(least.parallel().min_workers());
    const v1::JobPlan plan = lockstep::PlanJob(
        least, *model, PlannedWorkerFor(least, AllWorkers(shell_.board())));
    if (!plan.fits()) job->plan = PlanText(plan);
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  shell_.SubmitJob(*std::move(job), AnswerLater(reactor, response));
  return reactor;
}

grpc::ServerUnaryReactor* JobService::PlanJob(
    grpc::CallbackServerContext* context, const v1::PlanJobRequest* request,
    v1::PlanJobResponse* response) {
  return Answer(context, PlanNow(shell_.board(), *request, *response));
}

grpc::ServerUnaryReactor* JobService::GetJob(
    grpc::CallbackServerContext* context, const v1::GetJobRequest* request,
    v1::Job* response) {
  const auto get = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const JobId id, ParseJobName("name", request->name()));
    ASSIGN_OR_RETURN(const JobSnapshot job, shell_.board().GetJob(id));
    *response = *job;
    return absl::OkStatus();
  };
  return Answer(context, get());
}

grpc::ServerUnaryReactor* JobService::ListJobs(
    grpc::CallbackServerContext* context, const v1::ListJobsRequest* request,
    v1::ListJobsResponse* response) {
  return Answer(context,
                lockstep::ListJobs(shell_.board(), *request, *response));
}

grpc::ServerUnaryReactor* JobService::CancelJob(
    grpc::CallbackServerContext* context, const v1::CancelJobRequest* request,
    v1::Job* response) {
  const absl::StatusOr<JobId> job = ParseJobName("name", request->name());
  if (!job.ok()) return Answer(context, job.status());
  if (request->reason().size() > kReasonBytesMax) {
    return Answer(context, absl::InvalidArgumentError(absl::StrCat(
                               "reason: expected at most ", kReasonBytesMax,
                               " bytes, got ", request->reason().size())));
  }
  if (!request->request_id().empty()) {
    const absl::Status status = CheckRequestId(request->request_id());
    if (!status.ok()) return Answer(context, status);
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  shell_.CancelJob(*job, request->reason(), AnswerLater(reactor, response));
  return reactor;
}

grpc::ServerWriteReactor<v1::WatchJobResponse>* JobService::WatchJob(
    grpc::CallbackServerContext*, const v1::WatchJobRequest* request) {
  return StartJobWatch(shell_.board(), request->name());
}

}  // namespace lockstep
