// A coordinator without a mind of its own, for tests of the agent: it welcomes
// workers as it is told to, remembers what they say, and sends what it is told.
#ifndef WORKER_AGENT_FAKE_COORDINATOR_H_
#define WORKER_AGENT_FAKE_COORDINATOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/session.h"
#include "grpcpp/grpcpp.h"
#include "lockstep/v1/worker_service.grpc.pb.h"

namespace lockstep {

// Thread-safe.
class FakeCoordinator final : private v1::WorkerService::Service {
 public:
  // What it remembers; of all streams, in order.
  struct Memory {
    std::vector<Hello> hellos;
    std::vector<WorkerStatus> statuses;  // Also those of hellos.
    std::vector<v1::StepReports> reports;
    int open_streams = 0;
    int left_count = 0;    // Streams that the worker ended on purpose.
    int broken_count = 0;  // And others.
  };

  // Listens on loopback; a port of 0 is chosen freely.
  FakeCoordinator();
  ~FakeCoordinator() override;

  int port() const { return port_; }
  std::string address() const;

  // Stops listening and breaks all streams; and begins again, on the same port,
  // as the next incarnation.
  void StopServing();
  void ServeAgain();

  // Commands that follow get sequence 1, 2, ... again.
  void Send(const CommandBody& command);
  void AckReports(int64_t sequence);

  // What hellos from now on are answered with; OK is a welcome.
  void AnswerHellosWith(absl::Status status);

  // Waits until `condition` holds, for a minute at most; whether it does.
  bool WaitUntil(const std::function<bool(const Memory&)>& condition);
  Memory memory() const;

  // The last status that a worker sent, or said hello with.
  static WorkerStatus Last(const Memory& memory);

  static constexpr absl::Duration kLease = absl::Milliseconds(1200);

 private:
  using Stream =
      grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::WorkerMessage>;

  grpc::Status Session(grpc::ServerContext* context, Stream* stream) override;
  void Listen();

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;

  mutable Mutex mutex_;
  CondVar changed_;
  Memory memory_ ABSL_GUARDED_BY(mutex_);
  absl::Status answer_ ABSL_GUARDED_BY(mutex_);
  int64_t incarnation_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t last_sequence_ ABSL_GUARDED_BY(mutex_) = 0;
  Stream* current_ ABSL_GUARDED_BY(mutex_) = nullptr;  // Welcomed.
};

}  // namespace lockstep

#endif  // WORKER_AGENT_FAKE_COORDINATOR_H_
