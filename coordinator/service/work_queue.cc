#include "coordinator/service/work_queue.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/service/named_thread.h"

namespace lockstep {

WorkQueue::WorkQueue(std::string name, int task_count_max)
    : task_count_max_(task_count_max) {
  thread_ = StartThread(std::move(name), [this] { Run(); });
}

WorkQueue::~WorkQueue() {
  {
    MutexLock lock(&mutex_);
    ending_ = true;
  }
  changed_.Signal();
  thread_.join();
}

absl::Status WorkQueue::Add(std::function<void()> task) {
  {
    MutexLock lock(&mutex_);
    if (static_cast<int>(tasks_.size()) >= task_count_max_) {
      return absl::ResourceExhaustedError(absl::StrCat(
          tasks_.size(), " reads wait already; try again in a moment"));
    }
    tasks_.push_back(std::move(task));
  }
  changed_.Signal();
  return absl::OkStatus();
}

void WorkQueue::Run() {
  while (true) {
    std::function<void()> task;
    {
      MutexLock lock(&mutex_);
      while (tasks_.empty() && !ending_) changed_.Wait(&mutex_);
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace lockstep
