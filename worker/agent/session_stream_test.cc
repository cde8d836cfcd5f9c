#include "worker/agent/session_stream.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "lockstep/v1/worker_service.grpc.pb.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

// Takes a stream and reads nothing of it until it is told to.
class SlowServer final : private v1::WorkerService::Service {
 public:
  SlowServer() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~SlowServer() override {
    Read();
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
    // Orders what its threads wrote before the end of the members, for
    // ThreadSanitizer too, which does not see how Wait() does.
    MutexLock lock(&mutex_);
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  void Read() {
    MutexLock lock(&mutex_);
    reading_ = true;
    changed_.SignalAll();
  }

  // What came, once the worker has finished.
  std::vector<v1::WorkerMessage> WaitForAll() {
    MutexLock lock(&mutex_);
    while (!ended_) changed_.Wait(&mutex_);
    return received_;
  }

 private:
  grpc::Status Session(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::WorkerMessage>*
          stream) override {
    {
      MutexLock lock(&mutex_);
      while (!reading_) changed_.Wait(&mutex_);
    }
    std::vector<v1::WorkerMessage> received;
    v1::WorkerMessage message;
    while (stream->Read(&message)) received.push_back(message);
    MutexLock lock(&mutex_);
    received_ = std::move(received);
    ended_ = true;
    changed_.SignalAll();
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "it stops");
  }

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  Mutex mutex_;
  CondVar changed_;
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<v1::WorkerMessage> received_ ABSL_GUARDED_BY(mutex_);
};

// A stream and its end.
class Client {
 public:
  explicit Client(const SessionStreamOptions& options)
      : stream_(SessionStream::Open(
            options, 7,
            {.on_message = [](int64_t, v1::CoordinatorMessage) {},
             .on_closed =
                 [this](int64_t number, absl::Status status) {
                   EXPECT_EQ(number, 7);
                   MutexLock lock(&mutex_);
                   EXPECT_FALSE(end_.has_value());
                   end_ = std::move(status);
                   changed_.SignalAll();
                 }})) {}
  ~Client() {
    stream_->Cancel();
    WaitForEnd().IgnoreError();
  }

  SessionStream& stream() { return *stream_; }

  absl::Status WaitForEnd() {
    MutexLock lock(&mutex_);
    while (!end_.has_value()) changed_.Wait(&mutex_);
    return *end_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  const std::unique_ptr<SessionStream> stream_;
};

v1::WorkerMessage StatusMessage(int64_t sequence) {
  v1::WorkerMessage message;
  message.mutable_status()->set_applied_sequence(sequence);
  return message;
}

// Longer than what is sent to a server that does not read.
v1::WorkerMessage LongMessage() {
  v1::WorkerMessage message;
  message.mutable_step_reports()->add_reports()->set_worker(
      std::string(3 << 20, 'w'));
  return message;
}

TEST(SessionStreamTest, OfWaitingStatusesTheLastIsSentAndNothingOvertakes) {
  SlowServer server;
  Client client({.coordinator = server.address()});
  client.stream().Send(LongMessage());
  for (int64_t i = 1; i <= 50; ++i) client.stream().Send(StatusMessage(i));
  client.stream().Send(LongMessage());
  for (int64_t i = 51; i <= 99; ++i) client.stream().Send(StatusMessage(i));

  server.Read();
  client.stream().Finish();

  // How many had to wait is up to the transport's buffers.
  const auto received = server.WaitForAll();
  EXPECT_LT(received.size(), 101u);
  std::vector<int64_t> statuses;
  std::vector<int64_t> before_reports;
  for (const v1::WorkerMessage& message : received) {
    if (message.has_step_reports()) {
      before_reports.push_back(statuses.empty() ? 0 : statuses.back());
    } else {
      statuses.push_back(message.status().applied_sequence());
    }
  }
  EXPECT_EQ(before_reports, (std::vector<int64_t>{0, 50}));
  EXPECT_TRUE(std::is_sorted(statuses.begin(), statuses.end()));
  ASSERT_FALSE(statuses.empty());
  EXPECT_EQ(statuses.back(), 99);
  EXPECT_EQ(client.WaitForEnd(), absl::UnavailableError("it stops"));
}

TEST(SessionStreamTest, AStreamWhoseQueueIsFullIsGivenUp) {
  SlowServer server;
  Client client({.coordinator = server.address(), .unsent_count_max = 4});

  // The server's buffers take a few.
  for (int i = 0; i < 12; ++i) client.stream().Send(LongMessage());

  EXPECT_EQ(client.WaitForEnd().code(), absl::StatusCode::kCancelled);
}

TEST(SessionStreamTest, CancelledItEndsAtOnceWhateverIsUnderWay) {
  SlowServer server;
  Client client({.coordinator = server.address()});
  client.stream().Send(LongMessage());
  client.stream().Finish();

  client.stream().Cancel();

  EXPECT_EQ(client.WaitForEnd().code(), absl::StatusCode::kCancelled);
  client.stream().Send(LongMessage());  // Ignored.
  client.stream().ReadNext();
  client.stream().Cancel();
}

TEST(SessionStreamTest, AnAddressWhereNobodyListensIsUnavailableAndNamed) {
  std::string address;
  {
    SlowServer gone;
    address = gone.address();
  }
  Client client({.coordinator = address});

  const absl::Status status = client.WaitForEnd();

  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(address));
}

// As some machines set it, for the web.
TEST(SessionStreamTest, AProxyIsNotUsed) {
  ASSERT_EQ(setenv("http_proxy", "http://127.0.0.1:1", 1), 0);
  ASSERT_EQ(setenv("grpc_proxy", "http://127.0.0.1:1", 1), 0);
  SlowServer server;
  server.Read();
  Client client({.coordinator = server.address()});
  client.stream().Send(StatusMessage(1));
  client.stream().Finish();

  EXPECT_EQ(server.WaitForAll().size(), 1u);
  unsetenv("http_proxy");
  unsetenv("grpc_proxy");
}

}  // namespace
}  // namespace lockstep
