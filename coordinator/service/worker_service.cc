#include "coordinator/service/worker_service.h"

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/grpc_status.h"
#include "common/log.h"
#include "common/mutex.h"
#include "common/session_proto.h"
#include "common/status.h"
#include "coordinator/service/names.h"

namespace lockstep {
namespace {

constexpr int kReportsOfAMessageMax = 256;

// Messages of reports that may wait for the store; then the stream is not read
// until some are stored, so that a fast worker does not fill the memory.
constexpr int kWaitingMessagesMax = 8;

absl::Status CheckReport(const v1::StepMetrics& report) {
  RETURN_IF_ERROR(ParseJobName("job", report.job()).status());
  for (const auto& [field, value, least] :
       {std::tuple("generation", report.generation(), int64_t{1}),
        std::tuple("step", report.step(), int64_t{0}),
        std::tuple("rank", int64_t{report.rank()}, int64_t{0}),
        std::tuple("token_count", report.token_count(), int64_t{0}),
        std::tuple("micro_batch_count", int64_t{report.micro_batch_count()},
                   int64_t{0})}) {
    if (value < least) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ": expected at least ", least, ", got ", value));
    }
  }
  return absl::OkStatus();
}

// One stream.  Owns itself until gRPC is done with it; the shell shares it.
class SessionStream final
    : public grpc::ServerBidiReactor<v1::WorkerMessage, v1::CoordinatorMessage>,
      public SessionSink,
      public std::enable_shared_from_this<SessionStream> {
 public:
  SessionStream(Shell& shell, Clock& clock,
                grpc::CallbackServerContext* context)
      : shell_(shell), clock_(clock), context_(context) {}

  void Start() {
    self_ = shared_from_this();
    StartRead(&incoming_);
  }

  // ---- SessionSink.

  void SendWelcome(const Welcome& welcome) override {
    v1::CoordinatorMessage message;
    *message.mutable_welcome() = ToProto(welcome);
    Send(std::move(message));
  }

  void SendCommand(const Command& command) override {
    v1::CoordinatorMessage message;
    *message.mutable_command() = ToProto(command);
    Send(std::move(message));
  }

  void SendReportsAck(int64_t sequence) override {
    MutexLock lock(&mutex_);
    ack_ = sequence;
    Pump();
  }

  void Close(const absl::Status& status) override {
    MutexLock lock(&mutex_);
    if (!close_.has_value()) close_ = status;
    Pump();
  }

  // ---- gRPC.

  void OnReadDone(bool ok) override {
    if (!ok) {
      // The worker has said all it will, or the stream is broken.
      {
        MutexLock lock(&mutex_);
        half_closed_ = !close_.has_value();
      }
      Close(session_.value != 0 ? absl::OkStatus()
                                : absl::InvalidArgumentError(
                                      "the stream ended without a hello"));
      return;
    }
    if (const absl::Status status = Take(); !status.ok()) {
      LOG(WARNING) << "session refused" << Field("worker", worker_.value)
                   << Field("peer", context_->peer())
                   << Field("error", status.message());
      Close(status);
      return;
    }
    MutexLock lock(&mutex_);
    if (waiting_count_ >= kWaitingMessagesMax) {
      paused_ = true;
    } else if (!finished_) {
      StartRead(&incoming_);
    }
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(&mutex_);
    writing_ = false;
    if (!ok && !close_.has_value()) {
      close_ = absl::UnavailableError("the stream broke");
    }
    Pump();
  }

  void OnCancel() override { Close(absl::CancelledError()); }

  void OnDone() override {
    bool leaving;
    {
      MutexLock lock(&mutex_);
      // A broken stream, too, ends the reading; but it counts as cancelled.
      leaving = half_closed_ && !context_->IsCancelled();
    }
    if (session_.value != 0) shell_.OnSessionClosed(session_, leaving);
    self_.reset();  // The last use of this, unless the shell shares it.
  }

 private:
  // What came in incoming_.
  absl::Status Take() {
    switch (incoming_.body_case()) {
      case v1::WorkerMessage::kHello:
        return Annotate(TakeHello(), "hello");
      case v1::WorkerMessage::kStatus:
        if (session_.value == 0) break;
        return Annotate(TakeStatus(), "status");
      case v1::WorkerMessage::kStepReports:
        if (session_.value == 0) break;
        return Annotate(TakeReports(), "step_reports");
      case v1::WorkerMessage::BODY_NOT_SET:
        return absl::InvalidArgumentError(
            "message: expected hello, status or step_reports, got none that "
            "this version knows");
    }
    return absl::InvalidArgumentError(
        "message: the first of a stream must be hello");
  }

  absl::Status TakeHello() {
    if (session_.value != 0) {
      return absl::InvalidArgumentError("only the first message may be one");
    }
    ASSIGN_OR_RETURN(const Hello hello, FromProto(incoming_.hello()));
    worker_ = hello.worker;
    session_ = shell_.OpenSession(hello, context_->peer(), self_);
    return absl::OkStatus();
  }

  absl::Status TakeStatus() {
    ASSIGN_OR_RETURN(const WorkerStatus status, FromProto(incoming_.status()));
    shell_.board().NoteSeen(worker_, clock_.WallNow());
    shell_.OnStatus(session_, status);
    return absl::OkStatus();
  }

  absl::Status TakeReports() {
    v1::StepReports& reports = *incoming_.mutable_step_reports();
    if (reports.first_sequence() < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("first_sequence: expected at least 1, got ",
                       reports.first_sequence()));
    }
    if (reports.reports_size() > kReportsOfAMessageMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("reports: expected at most ", kReportsOfAMessageMax,
                       ", got ", reports.reports_size()));
    }
    ReportBatch batch;
    for (v1::StepMetrics& report : *reports.mutable_reports()) {
      RETURN_IF_ERROR(
          Annotate(CheckReport(report),
                   absl::StrCat("reports[", batch.reports.size(), "]")));
      batch.reports.push_back(
          std::make_shared<v1::StepMetrics>(std::move(report)));
    }
    batch.last_sequence = reports.first_sequence() + reports.reports_size() - 1;
    if (reports.dropped_count() > dropped_count_) {
      LOG(WARNING) << "step reports were dropped while the coordinator was away"
                   << Field("worker", worker_.value)
                   << Field("dropped_count", reports.dropped_count());
      dropped_count_ = reports.dropped_count();
    }
    batch.done = [self = shared_from_this()] { self->OnReportsStored(); };
    {
      MutexLock lock(&mutex_);
      ++waiting_count_;
    }
    shell_.board().NoteSeen(worker_, clock_.WallNow());
    shell_.OnStepReports(session_, worker_, std::move(batch));
    return absl::OkStatus();
  }

  void OnReportsStored() {
    MutexLock lock(&mutex_);
    --waiting_count_;
    if (!paused_) return;
    paused_ = false;
    if (!finished_) StartRead(&incoming_);
  }

  void Send(v1::CoordinatorMessage message) {
    MutexLock lock(&mutex_);
    queue_.push_back(std::move(message));
    Pump();
  }

  // Starts the next write, or ends the stream.
  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_) return;
    if (close_.has_value()) {
      // What is queued is dropped: unacknowledged commands are sent again on
      // the worker's next stream.
      finished_ = true;
      Finish(ToGrpcStatus(*close_));
    } else if (!queue_.empty()) {
      outgoing_ = std::move(queue_.front());
      queue_.pop_front();
      writing_ = true;
      StartWrite(&outgoing_);
    } else if (ack_.has_value()) {
      outgoing_.Clear();
      outgoing_.mutable_step_reports_ack()->set_sequence(*ack_);
      ack_.reset();
      writing_ = true;
      StartWrite(&outgoing_);
    }
  }

  Shell& shell_;
  Clock& clock_;
  grpc::CallbackServerContext* const context_;
  std::shared_ptr<SessionStream> self_;

  // Of the one read at a time.
  v1::WorkerMessage incoming_;
  WorkerId worker_;
  SessionId session_;  // 0 before the hello.
  int64_t dropped_count_ = 0;

  Mutex mutex_;
  // The core bounds it: a worker has few unacknowledged commands.
  std::deque<v1::CoordinatorMessage> queue_ ABSL_GUARDED_BY(mutex_);
  std::optional<int64_t> ack_ ABSL_GUARDED_BY(mutex_);  // The newest suffices.
  std::optional<absl::Status> close_ ABSL_GUARDED_BY(mutex_);
  v1::CoordinatorMessage outgoing_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool half_closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool paused_ ABSL_GUARDED_BY(mutex_) = false;  // A read is owed.
  int waiting_count_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

grpc::ServerBidiReactor<v1::WorkerMessage, v1::CoordinatorMessage>*
WorkerService::Session(grpc::CallbackServerContext* context) {
  auto stream = std::make_shared<SessionStream>(shell_, clock_, context);
  stream->Start();
  return stream.get();
}

}  // namespace lockstep
