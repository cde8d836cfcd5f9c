#include "worker/agent/session_stream.h"

#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/grpc_status.h"
#include "common/mutex.h"
#include "grpcpp/grpcpp.h"
#include "lockstep/v1/worker_service.grpc.pb.h"

namespace lockstep {
namespace {

// Above what a Start of thousands of ranks needs; a frame of the link to the
// trainer takes what passed here.
constexpr int kReceivedBytesMax = 8 << 20;

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

std::shared_ptr<grpc::Channel> MakeChannel(
    const SessionStreamOptions& options) {
  grpc::ChannelArguments arguments;
  // A proxy for web pages has no business between these two.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  // Connections, and the memory of failed ones, belong to this channel alone.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
                   Milliseconds(options.connect_timeout));
  // What was said is said again by the core, not by a library.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS,
                   Milliseconds(options.probe_interval));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                   Milliseconds(options.probe_timeout));
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetMaxReceiveMessageSize(kReceivedBytesMax);
  return grpc::CreateCustomChannel(absl::StrCat("dns:///", options.coordinator),
                                   grpc::InsecureChannelCredentials(),
                                   arguments);
}

class GrpcSessionStream final
    : public SessionStream,
      private grpc::ClientBidiReactor<v1::WorkerMessage,
                                      v1::CoordinatorMessage> {
 public:
  GrpcSessionStream(const SessionStreamOptions& options, int64_t number,
                    Observer observer)
      : number_(number),
        unsent_count_max_(options.unsent_count_max),
        observer_(std::move(observer)),
        stub_(v1::WorkerService::NewStub(MakeChannel(options))) {
    stub_->async()->Session(&context_, this);
    // Reads and writes begin outside of reactions: until the hold is released,
    // the stream does not end.
    AddHold();
    StartRead(&received_);
    StartCall();
  }

  ~GrpcSessionStream() override {
    MutexLock lock(&mutex_);
    LS_CHECK(done_);
  }

  void Send(v1::WorkerMessage message) override {
    MutexLock lock(&mutex_);
    if (released_ || finishing_) return;
    // The first may be under way.
    if (message.has_status() && unsent_.size() > 1 &&
        unsent_.back().has_status()) {
      unsent_.back() = std::move(message);
      return;
    }
    if (unsent_.size() >= unsent_count_max_) {
      ReleaseAndCancel();
      return;
    }
    unsent_.push_back(std::move(message));
    if (unsent_.size() == 1) StartWrite(&unsent_.front());
  }

  void ReadNext() override {
    MutexLock lock(&mutex_);
    if (!released_) StartRead(&received_);
  }

  void Finish() override {
    MutexLock lock(&mutex_);
    if (released_ || finishing_) return;
    finishing_ = true;
    if (unsent_.empty()) StartWritesDone();
  }

  void Cancel() override {
    MutexLock lock(&mutex_);
    ReleaseAndCancel();
  }

 private:
  // Nothing is begun on the stream from outside after this.
  void Release() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (released_) return;
    released_ = true;
    RemoveHold();
  }

  void ReleaseAndCancel() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (done_) return;
    context_.TryCancel();
    Release();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      MutexLock lock(&mutex_);
      Release();
      return;
    }
    v1::CoordinatorMessage message;
    message.Swap(&received_);
    observer_.on_message(number_, std::move(message));
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(&mutex_);
    unsent_.pop_front();
    // A write that failed ends the stream: the read that is under way, or the
    // next, says so.
    if (!ok || released_) {
      unsent_.clear();
    } else if (!unsent_.empty()) {
      StartWrite(&unsent_.front());
    } else if (finishing_) {
      StartWritesDone();
    }
  }

  void OnDone(const grpc::Status& status) override {
    {
      MutexLock lock(&mutex_);
      done_ = true;
    }
    // This may be destroyed before the call returns.
    const auto on_closed = std::move(observer_.on_closed);
    on_closed(number_, FromGrpcStatus(status));
  }

  const int64_t number_;
  const size_t unsent_count_max_;
  Observer observer_;
  const std::unique_ptr<v1::WorkerService::Stub> stub_;
  grpc::ClientContext context_;
  v1::CoordinatorMessage received_;  // Of the read that is under way.

  Mutex mutex_;
  // The first is being written.
  std::deque<v1::WorkerMessage> unsent_ ABSL_GUARDED_BY(mutex_);
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  bool released_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

std::unique_ptr<SessionStream> SessionStream::Open(
    const SessionStreamOptions& options, int64_t number, Observer observer) {
  return std::make_unique<GrpcSessionStream>(options, number,
                                             std::move(observer));
}

}  // namespace lockstep
