#include "coordinator/service/step_watch.h"

#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/grpc_status.h"
#include "common/mutex.h"
#include "common/status.h"
#include "coordinator/service/names.h"

namespace lockstep {
namespace {

constexpr int kRowsOfAMessageMax = 512;

// Owns itself until gRPC is done with it; the board and a read under way share
// it.
class StepWatch final
    : public grpc::ServerWriteReactor<v1::WatchStepMetricsResponse>,
      public StepWatcher,
      public std::enable_shared_from_this<StepWatch> {
 public:
  StepWatch(Board& board, Store& store, WorkQueue& readers)
      : board_(board), store_(store), readers_(readers) {}

  void Start(const v1::WatchStepMetricsRequest& request) {
    self_ = shared_from_this();
    // At once: the first row may be long in coming.
    StartSendInitialMetadata();
    const absl::Status status = Begin(request);
    if (!status.ok()) OnEnd(status);
  }

  void OnSteps(const std::vector<StepSnapshot>& rows) override {
    MutexLock lock(&mutex_);
    for (const StepSnapshot& row : rows) {
      if (row->step() < query_.first_step) continue;
      if (live_.size() == kWatchedRowsMax) {
        live_.pop_front();
        ++dropped_count_;
      }
      live_.push_back(row);
    }
    Pump();
  }

  void OnEnd(const absl::Status& status) override {
    MutexLock lock(&mutex_);
    if (!end_.has_value() || end_->ok()) end_ = status;
    Pump();
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(&mutex_);
    writing_ = false;
    if (!ok) end_ = absl::CancelledError();
    Pump();
  }

  void OnCancel() override { OnEnd(absl::CancelledError()); }

  void OnDone() override {
    JobId job;
    {
      MutexLock lock(&mutex_);
      job = query_.job;
    }
    board_.Unwatch(job, shared_from_this());
    self_.reset();  // The last use of this, unless a read is under way.
  }

 private:
  absl::Status Begin(const v1::WatchStepMetricsRequest& request) {
    StepQuery query;
    ASSIGN_OR_RETURN(query.job, ParseJobName("job", request.job()));
    if (request.first_step() < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "first_step: expected at least 0, got ", request.first_step()));
    }
    query.first_step = request.first_step();
    query.row_count_max = kRowsOfAMessageMax;
    {
      MutexLock lock(&mutex_);
      query_ = query;
    }
    ASSIGN_OR_RETURN(const Board::StepView view,
                     board_.WatchSteps(query.job, self_));
    MutexLock lock(&mutex_);
    query_.last_commit = view.commit;
    read_under_way_ = false;
    if (view.job_has_ended) end_ = absl::OkStatus();
    Pump();
    return absl::OkStatus();
  }

  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_) return;
    if (end_.has_value() && !end_->ok()) {
      finished_ = true;
      Finish(ToGrpcStatus(*end_));
    } else if (reading_stored_) {
      if (read_under_way_) return;
      read_under_way_ = true;
      const absl::Status status =
          readers_.Add([self = shared_from_this(), query = query_] {
            self->OnStored(self->store_.ListSteps(query));
          });
      if (!status.ok()) {
        finished_ = true;
        Finish(ToGrpcStatus(status));
      }
    } else if (!live_.empty()) {
      response_.Clear();
      while (!live_.empty() &&
             response_.step_metrics_size() < kRowsOfAMessageMax) {
        *response_.add_step_metrics() = *live_.front();
        live_.pop_front();
      }
      Write();
    } else if (end_.has_value()) {
      finished_ = true;
      Finish(ToGrpcStatus(*end_));
    }
  }

  void Write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    response_.set_dropped_count(dropped_count_);
    writing_ = true;
    StartWrite(&response_);
  }

  void OnStored(const absl::StatusOr<std::vector<StepRow>>& rows) {
    MutexLock lock(&mutex_);
    read_under_way_ = false;
    if (!rows.ok()) {
      end_ = rows.status();
      Pump();
      return;
    }
    if (static_cast<int>(rows->size()) < query_.row_count_max) {
      reading_stored_ = false;
    }
    if (!rows->empty() && !finished_) {
      query_.after = StepPlace{rows->back().step, rows->back().rank};
      response_.Clear();
      for (const StepRow& row : *rows) {
        if (!response_.add_step_metrics()->ParseFromString(row.metrics)) {
          end_ = absl::DataLossError(
              absl::StrCat("store: step ", row.step, " of rank ", row.rank,
                           ", ", JobName(query_.job), ": not a StepMetrics"));
          Pump();
          return;
        }
      }
      Write();
      return;
    }
    Pump();
  }

  Board& board_;
  Store& store_;
  WorkQueue& readers_;
  std::shared_ptr<StepWatch> self_;

  Mutex mutex_;
  StepQuery query_ ABSL_GUARDED_BY(mutex_);  // Of the next stored page.
  // From the beginning: what comes waits until what is stored was sent.
  bool reading_stored_ ABSL_GUARDED_BY(mutex_) = true;
  // Also until Begin() knows what to read.
  bool read_under_way_ ABSL_GUARDED_BY(mutex_) = true;
  std::deque<StepSnapshot> live_ ABSL_GUARDED_BY(mutex_);
  int64_t dropped_count_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  v1::WatchStepMetricsResponse response_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

grpc::ServerWriteReactor<v1::WatchStepMetricsResponse>* StartStepWatch(
    Board& board, Store& store, WorkQueue& readers,
    const v1::WatchStepMetricsRequest& request) {
  auto watch = std::make_shared<StepWatch>(board, store, readers);
  watch->Start(request);
  return watch.get();
}

}  // namespace lockstep
