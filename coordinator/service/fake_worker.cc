#include "coordinator/service/fake_worker.h"

#include "absl/strings/str_cat.h"
#include "common/time_proto.h"

namespace lockstep {

v1::JobSpec MakeJobSpec(const std::string& output_directory, int64_t max_steps,
                        int min_workers, int max_workers) {
  v1::JobSpec spec;
  spec.set_display_name("test");
  v1::Gpt2Config* gpt2 = spec.mutable_model()->mutable_gpt2();
  gpt2->set_vocab_size(256);
  gpt2->set_n_embd(8);
  gpt2->set_n_layer(1);
  gpt2->set_n_head(1);
  spec.mutable_data()->add_files("/data/text");
  spec.mutable_data()->set_format(v1::DataSpec::BYTES);
  spec.mutable_data()->set_sequence_length(16);
  spec.mutable_batch()->set_global_batch_size(8);
  spec.mutable_batch()->set_micro_batch_size(2);
  spec.mutable_schedule()->set_max_steps(max_steps);
  spec.mutable_schedule()->set_peak_learning_rate(1e-3);
  spec.mutable_parallel()->set_min_workers(min_workers);
  spec.mutable_parallel()->set_max_workers(max_workers);
  spec.set_output_directory(output_directory);
  return spec;
}

FakeWorker::FakeWorker(std::shared_ptr<grpc::Channel> channel,
                       const std::string& name, int64_t incarnation)
    : stub_(v1::WorkerService::NewStub(channel)),
      name_(name),
      incarnation_(incarnation) {
  status_.set_trainer_ready(true);
  device_.set_kind("cpu");
  device_.set_numeric_class("cpu/test");
  device_.set_host("host-of-" + name);
}

FakeWorker::~FakeWorker() {
  if (stream_ != nullptr) {
    Break();
    Finish();
  }
}

void FakeWorker::OpenStream() {
  if (stream_ != nullptr) {
    Break();
    Finish();
  }
  {
    MutexLock lock(&mutex_);
    messages_.clear();
    ended_ = false;
  }
  context_ = std::make_unique<grpc::ClientContext>();
  context_->set_wait_for_ready(true);
  stream_ = stub_->Session(context_.get());
  ++stream_number_;
  reader_ = std::thread([this] { ReadAll(); });
}

void FakeWorker::ReadAll() {
  v1::CoordinatorMessage message;
  while (stream_->Read(&message)) {
    MutexLock lock(&mutex_);
    messages_.push_back(message);
    changed_.SignalAll();
  }
  MutexLock lock(&mutex_);
  ended_ = true;
  changed_.SignalAll();
}

void FakeWorker::SendHello() {
  v1::WorkerMessage message;
  v1::Hello* hello = message.mutable_hello();
  hello->set_worker(name_);
  hello->set_incarnation(incarnation_);
  hello->set_stream(stream_number_);
  *hello->mutable_device() = device_;
  *hello->mutable_status() = status_;
  hello->set_coordinator_incarnation(coordinator_incarnation_);
  Send(message);
}

void FakeWorker::Connect() {
  OpenStream();
  SendHello();
  const auto message = Next();
  if (!message.has_value() || !message->has_welcome()) return;
  if (message->welcome().coordinator_incarnation() > coordinator_incarnation_) {
    coordinator_incarnation_ = message->welcome().coordinator_incarnation();
    status_.set_applied_sequence(0);
  }
}

void FakeWorker::Send(const v1::WorkerMessage& message) {
  stream_->Write(message);
}

void FakeWorker::SendStatus() {
  v1::WorkerMessage message;
  *message.mutable_status() = status_;
  Send(message);
}

void FakeWorker::SendReports(int64_t first_step, int64_t end_step) {
  v1::WorkerMessage message;
  v1::StepReports* reports = message.mutable_step_reports();
  reports->set_first_sequence(last_report_sequence_ + 1);
  for (int64_t step = first_step; step < end_step; ++step) {
    v1::StepMetrics* report = reports->add_reports();
    report->set_job(absl::StrCat("jobs/", held().job()));
    report->set_generation(held().generation());
    report->set_step(step);
    report->set_rank(held().rank());
    report->set_loss(5.0 - 0.01 * static_cast<double>(step));
    report->set_token_count(128);
    report->set_micro_batch_count(2);
    *report->mutable_step_duration() = DurationToProto(absl::Milliseconds(100));
    // Rank 1 takes twice as long at backward.
    *report->mutable_forward() = DurationToProto(absl::Milliseconds(20));
    *report->mutable_backward() =
        DurationToProto(absl::Milliseconds(held().rank() == 1 ? 80 : 40));
    ++last_report_sequence_;
  }
  last_reports_ = message;
  Send(message);
}

std::optional<v1::CoordinatorMessage> FakeWorker::Next() {
  MutexLock lock(&mutex_);
  while (messages_.empty()) {
    if (ended_ || !changed_.WaitFor(&mutex_, absl::Seconds(20))) {
      if (messages_.empty()) return std::nullopt;
    }
  }
  v1::CoordinatorMessage message = std::move(messages_.front());
  messages_.pop_front();
  return message;
}

std::optional<v1::Command> FakeWorker::NextCommand() {
  while (true) {
    const auto message = Next();
    if (!message.has_value()) return std::nullopt;
    if (message->has_step_reports_ack()) {
      acked_ = message->step_reports_ack().sequence();
    } else if (message->has_command()) {
      status_.set_applied_sequence(message->command().sequence());
      return message->command();
    }
  }
}

bool FakeWorker::WaitForAck(int64_t sequence) {
  while (acked_ < sequence) {
    const auto message = Next();
    if (!message.has_value()) return false;
    if (message->has_step_reports_ack()) {
      acked_ = message->step_reports_ack().sequence();
    }
  }
  return true;
}

bool FakeWorker::JoinNextGeneration() {
  const auto command = NextCommand();
  if (!command.has_value() || !command->has_prepare()) return false;
  prepare_ = command->prepare();
  held().Clear();
  held().set_job(prepare_.job());
  held().set_generation(prepare_.generation());
  held().set_rank(prepare_.rank());
  held().set_phase(v1::Worker::JOINED);
  held().set_max_steps(prepare_.spec().schedule().max_steps());
  for (int i = 0; i < prepare_.workers_size(); ++i) {
    held().add_addresses(absl::StrCat(name_, "-for-", i));
  }
  if (prepare_.rank() == 0) held().set_nonce("nonce");
  SendStatus();
  return true;
}

bool FakeWorker::StartTraining() {
  const auto command = NextCommand();
  if (!command.has_value() || !command->has_start()) return false;
  start_ = command->start();
  TellPhase(v1::Worker::TRAINING);
  return true;
}

void FakeWorker::TellPhase(v1::Worker::Phase phase) {
  held().set_phase(phase);
  SendStatus();
}

bool FakeWorker::CommitAndRelease() {
  if (held().rank() == 0) {
    const auto commit = NextCommand();
    if (!commit.has_value() || !commit->has_commit_output()) return false;
    TellPhase(v1::Worker::FINISHED);
  }
  const auto release = NextCommand();
  if (!release.has_value() || !release->has_release()) return false;
  status_.clear_held();
  SendStatus();
  return true;
}

void FakeWorker::HalfClose() { stream_->WritesDone(); }

void FakeWorker::Break() { context_->TryCancel(); }

grpc::Status FakeWorker::Finish() {
  if (reader_.joinable()) reader_.join();
  const grpc::Status status = stream_->Finish();
  stream_.reset();
  return status;
}

}  // namespace lockstep
