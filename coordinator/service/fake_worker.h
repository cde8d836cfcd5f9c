// A worker for tests: speaks the session protocol and trains nothing.
#ifndef COORDINATOR_SERVICE_FAKE_WORKER_H_
#define COORDINATOR_SERVICE_FAKE_WORKER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "common/mutex.h"
#include "grpcpp/grpcpp.h"
#include "lockstep/v1/worker_service.grpc.pb.h"

namespace lockstep {

// A valid spec whose job has 4 micro-batches a step and `max_steps` steps.
v1::JobSpec MakeJobSpec(const std::string& output_directory, int64_t max_steps,
                        int min_workers = 1, int max_workers = 1);

class FakeWorker {
 public:
  FakeWorker(std::shared_ptr<grpc::Channel> channel, const std::string& name,
             int64_t incarnation = 1);
  // Breaks the stream that is open.
  ~FakeWorker();

  // The status it tells; a test may change it before SendStatus().
  v1::WorkerStatus& status() { return status_; }
  v1::HeldGeneration& held() { return *status_.mutable_held(); }
  // As it says in Hello.
  v1::DeviceInfo& device() { return device_; }
  int64_t coordinator_incarnation() const { return coordinator_incarnation_; }

  // Opens the next stream, without a word.
  void OpenStream();
  void SendHello();
  // Opens a stream, says hello, and takes the welcome.
  void Connect();

  void Send(const v1::WorkerMessage& message);
  void SendStatus();
  // One report for each of steps [first, end), numbered on from the last.
  void SendReports(int64_t first_step, int64_t end_step);
  // The same again, as after a lost acknowledgement.
  void ResendReports() { Send(last_reports_); }

  // The next message, waiting for it; none when the stream has ended, or 20
  // seconds have passed.
  std::optional<v1::CoordinatorMessage> Next();
  // The next command, applied; acknowledgements of reports are kept in acked().
  std::optional<v1::Command> NextCommand();
  // Waits until reports up to `sequence` are acknowledged.
  bool WaitForAck(int64_t sequence);
  int64_t acked() const { return acked_; }
  int64_t last_report_sequence() const { return last_report_sequence_; }

  // Takes the commands that follow as a worker does that trains `steps` steps,
  // up to the given point, and tells it.
  bool JoinNextGeneration();  // Prepare -> JOINED.
  bool StartTraining();       // Start -> TRAINING.
  bool CommitAndRelease();    // CommitOutput -> FINISHED, for rank 0; Release.
  void TellPhase(v1::Worker::Phase phase);

  void HalfClose();
  void Break();
  // Waits for the end of the stream.
  grpc::Status Finish();

  const v1::Start& start() const { return start_; }
  const v1::Prepare& prepare() const { return prepare_; }

 private:
  void ReadAll();

  std::unique_ptr<v1::WorkerService::Stub> stub_;
  const std::string name_;
  const int64_t incarnation_;
  int64_t stream_number_ = 0;
  int64_t coordinator_incarnation_ = 0;
  v1::DeviceInfo device_;
  v1::WorkerStatus status_;
  v1::Prepare prepare_;
  v1::Start start_;
  int64_t last_report_sequence_ = 0;
  int64_t acked_ = 0;
  v1::WorkerMessage last_reports_;

  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<
      grpc::ClientReaderWriter<v1::WorkerMessage, v1::CoordinatorMessage>>
      stream_;
  std::thread reader_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<v1::CoordinatorMessage> messages_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep

#endif  // COORDINATOR_SERVICE_FAKE_WORKER_H_
