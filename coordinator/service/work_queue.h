// One thread for work that must not hold up gRPC's own threads.
#ifndef COORDINATOR_SERVICE_WORK_QUEUE_H_
#define COORDINATOR_SERVICE_WORK_QUEUE_H_

#include <deque>
#include <functional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "common/mutex.h"

namespace lockstep {

// Runs tasks one after the other.  Thread-safe.
class WorkQueue {
 public:
  WorkQueue(std::string name, int task_count_max);
  // Runs what is queued, then ends the thread.
  ~WorkQueue();

  // Errors; `task` is then not run:
  //   ResourceExhausted: too many tasks wait.
  absl::Status Add(std::function<void()> task);

 private:
  void Run();

  const int task_count_max_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace lockstep

#endif  // COORDINATOR_SERVICE_WORK_QUEUE_H_
