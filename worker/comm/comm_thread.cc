#include "worker/comm/comm_thread.h"

#include <utility>

#include "worker/comm/named_thread.h"

namespace lockstep {

CommThread::CommThread(std::unique_ptr<Communicator> communicator)
    : communicator_(std::move(communicator)),
      thread_(StartThread("ls-comm", [this] { RunTasks(); })) {}

CommThread::~CommThread() {
  bool busy;
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    busy = running_ || !tasks_.empty();
    posted_.SignalAll();
  }
  if (busy) {
    communicator_->Abort(
        absl::CancelledError("the communicator's owner is going away"));
  }
  thread_.join();
}

int64_t CommThread::Post(Task task) {
  MutexLock lock(&mutex_);
  ++posted_count_;
  if (failure_.ok()) {
    tasks_.push_back(std::move(task));
    posted_.Signal();
  }
  return posted_count_;
}

absl::Status CommThread::WaitFor(int64_t number) {
  MutexLock lock(&mutex_);
  // After a failure nothing is left but what still runs.
  while (done_count_ < number && (failure_.ok() || running_)) {
    done_.Wait(&mutex_);
  }
  return failure_;
}

absl::Status CommThread::Wait() {
  MutexLock lock(&mutex_);
  while (running_ || !tasks_.empty()) done_.Wait(&mutex_);
  return failure_;
}

absl::Status CommThread::status() const {
  MutexLock lock(&mutex_);
  return failure_;
}

absl::Status CommThread::Run(Task task) {
  Post(std::move(task));
  return Wait();
}

void CommThread::Abort(absl::Status why) {
  communicator_->Abort(why);
  MutexLock lock(&mutex_);
  if (failure_.ok()) failure_ = std::move(why);
  tasks_.clear();
  done_.SignalAll();
}

void CommThread::RunTasks() {
  for (;;) {
    Task task;
    {
      MutexLock lock(&mutex_);
      while (tasks_.empty() && !stopping_) posted_.Wait(&mutex_);
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
      running_ = true;
    }
    absl::Status status = task(*communicator_);
    task = nullptr;  // What it holds may be waited for.
    if (!status.ok()) communicator_->Abort(status);

    MutexLock lock(&mutex_);
    running_ = false;
    ++done_count_;
    if (!status.ok()) {
      if (failure_.ok()) failure_ = std::move(status);
      tasks_.clear();
    }
    done_.SignalAll();
  }
}

}  // namespace lockstep
