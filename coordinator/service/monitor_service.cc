#include "coordinator/service/monitor_service.h"

#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/grpc_status.h"
#include "common/printable.h"
#include "common/status.h"
#include "common/time_proto.h"
#include "coordinator/core/straggler.h"
#include "coordinator/service/names.h"
#include "coordinator/service/page.h"
#include "coordinator/service/step_watch.h"

namespace lockstep {
namespace {

constexpr int kWorkersPageSize = 100;
constexpr int kWorkersPageSizeMax = 1000;
constexpr int kStepsPageSize = 1000;
constexpr int kStepsPageSizeMax = 10'000;

constexpr int kWindowSteps = 50;
constexpr int kWindowStepsMax = 10'000;
constexpr double kThreshold = 1.2;
constexpr double kThresholdMax = 1000;
// Of a window; with more ranks than this allows, fewer steps are looked at.
constexpr int kWindowRowsMax = 200'000;

grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context,
                                 const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

// Answers with what `read` says on the readers' thread.
grpc::ServerUnaryReactor* AnswerFrom(WorkQueue& readers,
                                     grpc::CallbackServerContext* context,
                                     std::function<absl::Status()> read) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::Status status = readers.Add([reactor, read = std::move(read)] {
    reactor->Finish(ToGrpcStatus(read()));
  });
  if (!status.ok()) reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

absl::Status ListWorkersNow(const Board& board,
                            const v1::ListWorkersRequest& request,
                            v1::ListWorkersResponse& response) {
  ASSIGN_OR_RETURN(
      const int size,
      PageSize(request.page_size(), kWorkersPageSize, kWorkersPageSizeMax));
  const std::string list = "workers";
  ASSIGN_OR_RETURN(const std::string after,
                   ParsePageToken(list, request.page_token()));
  Board::WorkerPage page = board.ListWorkers(after, size);
  for (v1::Worker& worker : page.workers) {
    *response.add_workers() = std::move(worker);
  }
  if (page.next.has_value()) {
    response.set_next_page_token(MakePageToken(list, *page.next));
  }
  return absl::OkStatus();
}

// A stored row as a message.
absl::Status ParseRow(const StepRow& row, v1::StepMetrics& metrics) {
  if (metrics.ParseFromString(row.metrics)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("store: step ", row.step, " of rank ",
                                          row.rank, ", ", JobName(row.key.job),
                                          ": not a StepMetrics"));
}

absl::StatusOr<StepPlace> ParseStepPlace(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ' ');
  StepPlace place;
  if (parts.size() == 2 && absl::SimpleAtoi(parts[0], &place.step) &&
      absl::SimpleAtoi(parts[1], &place.rank)) {
    return place;
  }
  return absl::InvalidArgumentError("page_token: damaged");
}

absl::Status ListStepsNow(const Board& board, Store& store,
                          const v1::ListStepMetricsRequest& request,
                          v1::ListStepMetricsResponse& response) {
  ASSIGN_OR_RETURN(const int size, PageSize(request.page_size(), kStepsPageSize,
                                            kStepsPageSizeMax));
  StepQuery query;
  ASSIGN_OR_RETURN(query.job, ParseJobName("job", request.job()));
  if (request.first_step() < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "first_step: expected at least 0, got ", request.first_step()));
  }
  query.first_step = request.first_step();
  if (request.has_last_step()) {
    if (request.last_step() < request.first_step()) {
      return absl::InvalidArgumentError(
          absl::StrCat("last_step: expected at least first_step, ",
                       request.first_step(), ", got ", request.last_step()));
    }
    query.last_step = request.last_step();
  }
  const std::string list = absl::StrCat("steps ", query.job.value, " ",
                                        query.first_step, " ", query.last_step);
  ASSIGN_OR_RETURN(const std::string place,
                   ParsePageToken(list, request.page_token()));
  if (!place.empty()) {
    ASSIGN_OR_RETURN(query.after, ParseStepPlace(place));
  }
  RETURN_IF_ERROR(board.GetJob(query.job).status());
  query.row_count_max = size + 1;
  ASSIGN_OR_RETURN(std::vector<StepRow> rows, store.ListSteps(query));
  if (static_cast<int>(rows.size()) > size) {
    rows.pop_back();
    response.set_next_page_token(MakePageToken(
        list, absl::StrCat(rows.back().step, " ", rows.back().rank)));
  }
  for (const StepRow& row : rows) {
    RETURN_IF_ERROR(ParseRow(row, *response.add_step_metrics()));
  }
  return absl::OkStatus();
}

absl::Status GetStragglersNow(const Board& board, Store& store,
                              const v1::GetStragglersRequest& request,
                              v1::GetStragglersResponse& response) {
  ASSIGN_OR_RETURN(const JobId id, ParseJobName("job", request.job()));
  if (request.window_steps() < 0 || request.window_steps() > kWindowStepsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("window_steps: expected 1 to ", kWindowStepsMax, ", got ",
                     request.window_steps()));
  }
  const int window =
      request.window_steps() == 0 ? kWindowSteps : request.window_steps();
  const double threshold =
      request.score_threshold() == 0 ? kThreshold : request.score_threshold();
  if (!(threshold > 1 && threshold <= kThresholdMax)) {
    return absl::InvalidArgumentError(
        absl::StrCat("score_threshold: expected above 1, to ", kThresholdMax,
                     ", got ", DoubleText(threshold)));
  }
  ASSIGN_OR_RETURN(const JobSnapshot job, board.GetJob(id));
  ASSIGN_OR_RETURN(
      const std::vector<StepRow> rows,
      store.LastSteps({id, job->generation()}, window, kWindowRowsMax));
  const int world = job->workers_size();
  std::vector<RankStep> steps;
  for (const StepRow& row : rows) {
    v1::StepMetrics metrics;
    RETURN_IF_ERROR(ParseRow(row, metrics));
    if (row.rank >= world) continue;
    steps.push_back({.rank = row.rank,
                     .micro_batch_count = metrics.micro_batch_count(),
                     .data_wait = DurationFromProto(metrics.data_wait()),
                     .forward = DurationFromProto(metrics.forward()),
                     .backward = DurationFromProto(metrics.backward()),
                     .update = DurationFromProto(metrics.update())});
  }
  if (steps.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        JobName(id), " has not committed a step in its current generation, ",
        job->generation(), "; it is ", v1::Job::State_Name(job->state())));
  }
  const std::vector<RankScore> scores = ScoreRanks(steps, world, threshold);
  for (int rank = 0; rank < world; ++rank) {
    const RankScore& score = scores[rank];
    v1::RankScore* out = response.add_ranks();
    out->set_rank(rank);
    out->set_worker(job->workers(rank));
    *out->mutable_compute_per_micro_batch() =
        DurationToProto(score.compute_per_micro_batch);
    *out->mutable_median_of_others() = DurationToProto(score.median_of_others);
    out->set_score(score.score);
    out->set_straggler(score.straggler);
    out->set_slow_phase(std::string(score.slow_phase));
    out->set_step_count(score.step_count);
    out->set_phase(board.PhaseOf(job->workers(rank)));
  }
  response.set_generation(job->generation());
  response.set_first_step(rows.front().step);
  response.set_last_step(rows.back().step);
  return absl::OkStatus();
}

}  // namespace

grpc::ServerUnaryReactor* MonitorService::ListWorkers(
    grpc::CallbackServerContext* context, const v1::ListWorkersRequest* request,
    v1::ListWorkersResponse* response) {
  return Answer(context, ListWorkersNow(board_, *request, *response));
}

// Request and response live until the call is finished.
grpc::ServerUnaryReactor* MonitorService::ListStepMetrics(
    grpc::CallbackServerContext* context,
    const v1::ListStepMetricsRequest* request,
    v1::ListStepMetricsResponse* response) {
  return AnswerFrom(readers_, context, [this, request, response] {
    return ListStepsNow(board_, store_, *request, *response);
  });
}

grpc::ServerWriteReactor<v1::WatchStepMetricsResponse>*
MonitorService::WatchStepMetrics(grpc::CallbackServerContext*,
                                 const v1::WatchStepMetricsRequest* request) {
  return StartStepWatch(board_, store_, readers_, *request);
}

grpc::ServerUnaryReactor* MonitorService::GetStragglers(
    grpc::CallbackServerContext* context,
    const v1::GetStragglersRequest* request,
    v1::GetStragglersResponse* response) {
  return AnswerFrom(readers_, context, [this, request, response] {
    return GetStragglersNow(board_, store_, *request, *response);
  });
}

}  // namespace lockstep
