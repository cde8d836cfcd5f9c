#include "worker/agent/fake_coordinator.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/grpc_status.h"
#include "common/session_proto.h"

namespace lockstep {

FakeCoordinator::FakeCoordinator() { Listen(); }

FakeCoordinator::~FakeCoordinator() { StopServing(); }

std::string FakeCoordinator::address() const {
  return absl::StrCat("127.0.0.1:", port_);
}

void FakeCoordinator::Listen() {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(address(), grpc::InsecureServerCredentials(), &port);
  // As the real one: workers probe their connection more often than gRPC's
  // default suffers.
  builder.AddChannelArgument(
      GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 100);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  LS_CHECK(server_ != nullptr && port > 0);
  port_ = port;
  MutexLock lock(&mutex_);
  ++incarnation_;
  last_sequence_ = 0;
}

void FakeCoordinator::StopServing() {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
  server_.reset();
  // Orders what its threads wrote before what follows, for ThreadSanitizer
  // too, which does not see how Wait() does.
  MutexLock lock(&mutex_);
}

void FakeCoordinator::ServeAgain() {
  LS_CHECK(server_ == nullptr);
  Listen();
}

grpc::Status FakeCoordinator::Session(grpc::ServerContext* context,
                                      Stream* stream) {
  v1::WorkerMessage message;
  if (!stream->Read(&message)) return grpc::Status::CANCELLED;
  const auto hello = FromProto(message.hello());
  if (!hello.ok()) return ToGrpcStatus(hello.status());
  {
    MutexLock lock(&mutex_);
    memory_.hellos.push_back(*hello);
    memory_.statuses.push_back(hello->status);
    changed_.SignalAll();
    if (!answer_.ok()) return ToGrpcStatus(answer_);
    v1::CoordinatorMessage welcome;
    *welcome.mutable_welcome() =
        ToProto(Welcome{{incarnation_}, kLease, kLease / 4});
    stream->Write(welcome);
    current_ = stream;
    ++memory_.open_streams;
  }
  absl::Status result;
  while (stream->Read(&message)) {
    MutexLock lock(&mutex_);
    if (message.has_status()) {
      const auto status = FromProto(message.status());
      if (!status.ok()) {
        result = status.status();
        break;
      }
      memory_.statuses.push_back(*status);
    } else if (message.has_step_reports()) {
      memory_.reports.push_back(message.step_reports());
    }
    changed_.SignalAll();
  }
  MutexLock lock(&mutex_);
  ++(context->IsCancelled() ? memory_.broken_count : memory_.left_count);
  --memory_.open_streams;
  if (current_ == stream) current_ = nullptr;
  changed_.SignalAll();
  return ToGrpcStatus(result);
}

void FakeCoordinator::Send(const CommandBody& command) {
  MutexLock lock(&mutex_);
  LS_CHECK(current_ != nullptr);
  v1::CoordinatorMessage message;
  *message.mutable_command() = ToProto(Command{++last_sequence_, command});
  current_->Write(message);
}

void FakeCoordinator::AckReports(int64_t sequence) {
  MutexLock lock(&mutex_);
  LS_CHECK(current_ != nullptr);
  v1::CoordinatorMessage message;
  message.mutable_step_reports_ack()->set_sequence(sequence);
  current_->Write(message);
}

void FakeCoordinator::AnswerHellosWith(absl::Status status) {
  MutexLock lock(&mutex_);
  answer_ = std::move(status);
}

bool FakeCoordinator::WaitUntil(
    const std::function<bool(const Memory&)>& condition) {
  const Instant deadline = RealClock().Now() + absl::Minutes(1);
  MutexLock lock(&mutex_);
  while (!condition(memory_)) {
    const absl::Duration left = deadline - RealClock().Now();
    if (left <= absl::ZeroDuration()) return false;
    changed_.WaitFor(&mutex_, left);
  }
  return true;
}

FakeCoordinator::Memory FakeCoordinator::memory() const {
  MutexLock lock(&mutex_);
  return memory_;
}

WorkerStatus FakeCoordinator::Last(const Memory& memory) {
  return memory.statuses.empty() ? WorkerStatus{} : memory.statuses.back();
}

}  // namespace lockstep
