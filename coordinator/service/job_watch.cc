#include "coordinator/service/job_watch.h"

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "common/grpc_status.h"
#include "common/mutex.h"
#include "coordinator/service/names.h"
#include "grpcpp/alarm.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kIntervalMin(100);

// Owns itself until gRPC is done with it; the board shares it.
class JobWatch final : public grpc::ServerWriteReactor<v1::WatchJobResponse>,
                       public JobWatcher,
                       public std::enable_shared_from_this<JobWatch> {
 public:
  explicit JobWatch(Board& board) : board_(board) {}

  void Start(const std::string& job_name) {
    self_ = shared_from_this();
    const absl::StatusOr<JobId> job = ParseJobName("name", job_name);
    if (!job.ok()) {
      OnEnd(job.status());
      return;
    }
    job_ = *job;
    absl::StatusOr<Board::JobView> view = board_.WatchJob(job_, self_);
    if (!view.ok()) {
      OnEnd(view.status());
      return;
    }
    // Before: if it has ended, no call will come any more.
    const v1::Job::State state = view->job->state();
    OnJob(view->job, view->revision);
    if (state == v1::Job::COMPLETED || state == v1::Job::CANCELLED ||
        state == v1::Job::FAILED) {
      OnEnd(absl::OkStatus());
    }
  }

  void OnJob(const JobSnapshot& job, int64_t revision) override {
    MutexLock lock(&mutex_);
    if (revision <= revision_) return;
    revision_ = revision;
    next_ = job;
    Pump();
  }

  void OnEnd(const absl::Status& status) override {
    MutexLock lock(&mutex_);
    if (!end_.has_value()) end_ = status;
    Pump();
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(&mutex_);
    writing_ = false;
    if (!ok && !end_.has_value()) end_ = absl::CancelledError();
    Pump();
  }

  void OnCancel() override { OnEnd(absl::CancelledError()); }

  void OnDone() override {
    board_.Unwatch(job_, shared_from_this());
    {
      MutexLock lock(&mutex_);
      if (alarm_ != nullptr) alarm_->Cancel();
    }
    self_.reset();  // The last use of this, unless the alarm rings right now.
  }

 private:
  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_) return;
    const bool failed = end_.has_value() && !end_->ok();
    if (next_ != nullptr && !failed) {
      // The final state does not wait.
      if (resting_ && !end_.has_value()) return;
      *response_.mutable_job() = *std::exchange(next_, nullptr);
      writing_ = true;
      StartWrite(&response_);
      if (!resting_ && !end_.has_value()) Rest();
    } else if (end_.has_value()) {
      finished_ = true;
      Finish(ToGrpcStatus(*end_));
    }
  }

  void Rest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    resting_ = true;
    // A new one: the old one may be what calls.
    alarm_ = std::make_unique<grpc::Alarm>();
    // An alarm keeps its function after it rang: a pointer that owns would be a
    // cycle.
    alarm_->Set(std::chrono::system_clock::now() + kIntervalMin,
                [watch = weak_from_this()](bool) {
                  if (const auto self = watch.lock()) self->OnRested();
                });
  }

  void OnRested() {
    MutexLock lock(&mutex_);
    resting_ = false;
    Pump();
  }

  Board& board_;
  JobId job_;
  std::shared_ptr<JobWatch> self_;

  Mutex mutex_;
  int64_t revision_ ABSL_GUARDED_BY(mutex_) = 0;
  JobSnapshot next_ ABSL_GUARDED_BY(mutex_);  // Newest that was not sent.
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool resting_ ABSL_GUARDED_BY(mutex_) = false;  // The alarm runs.
  v1::WatchJobResponse response_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

grpc::ServerWriteReactor<v1::WatchJobResponse>* StartJobWatch(
    Board& board, const std::string& job_name) {
  auto watch = std::make_shared<JobWatch>(board);
  watch->Start(job_name);
  return watch.get();
}

}  // namespace lockstep
