// The one thread that uses a communicator.
//
// Collectives posted here run in the order of posting, while the poster
// computes.  The first failure ends it: what was posted after that does not
// run, and every wait returns that error.
#ifndef WORKER_COMM_COMM_THREAD_H_
#define WORKER_COMM_COMM_THREAD_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "common/mutex.h"
#include "worker/comm/communicator.h"

namespace lockstep {

// Thread-safe; but who waits also waits for what others posted.
class CommThread {
 public:
  using Task = std::function<absl::Status(Communicator&)>;

  // Starts the thread.
  explicit CommThread(std::unique_ptr<Communicator> communicator);

  // Aborts the communicator if something is not done yet, and joins.
  ~CommThread();

  int rank() const { return communicator_->rank(); }
  int world() const { return communicator_->world(); }
  int64_t sent_bytes() const { return communicator_->sent_bytes(); }
  std::optional<int> failed_peer() const {
    return communicator_->failed_peer();
  }

  // An error that `task` returns also aborts the communicator, so that no other
  // rank waits for this one.  Returns the task's number, from 1.
  int64_t Post(Task task);

  // Waits until the task of this number, and all before it, are done.
  //
  // Errors: the first that a task returned.
  absl::Status WaitFor(int64_t number);

  // Waits until everything posted is done.
  //
  // Errors: the first that a task returned.
  absl::Status Wait();

  // The error that Wait would return, if there is one already.
  absl::Status status() const;

  // Post, then Wait.
  absl::Status Run(Task task);

  // Ends what runs and all that is posted with `why`, within milliseconds.
  void Abort(absl::Status why);

 private:
  void RunTasks();

  const std::unique_ptr<Communicator> communicator_;
  mutable Mutex mutex_;
  CondVar posted_;
  CondVar done_;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t posted_count_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t done_count_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace lockstep

#endif  // WORKER_COMM_COMM_THREAD_H_
