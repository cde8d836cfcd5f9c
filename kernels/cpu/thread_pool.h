// The threads of a CPU device, and loops split over them.
//
// Threads live as long as the pool, are named, and look for work for some
// microseconds before they sleep, since a training step is a chain of short
// loops.  Which thread runs which index is left to chance: a loop's result must
// not depend on it.
#ifndef KERNELS_CPU_THREAD_POOL_H_
#define KERNELS_CPU_THREAD_POOL_H_

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "common/mutex.h"

namespace lockstep::kernels {

// Thread-safe.
class ThreadPool {
 public:
  // Called with an index of the loop and, as scratch memory is chosen by it,
  // with the number of the running thread, 0 to thread_count() - 1; within one
  // loop no two threads have the same number.
  using Task = absl::FunctionRef<void(int64_t index, int thread)>;

  // `thread_count` counts the caller of ParallelFor: 1 creates no thread.
  explicit ThreadPool(int thread_count);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int thread_count() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls task(i) once for every i in [0, count), on this thread and the
  // pool's, and returns when all have ended.  While another thread's loop has
  // the pool, or from within a task, this thread runs its loop alone.
  // count: below 2^31.
  void ParallelFor(int64_t count, Task task);

 private:
  void Run(int thread);
  // Runs indices of the current loop until none is left to take.
  void Work(int thread);
  bool HasWork() const { return (ticket_.load() & kLeftMask) != 0; }

  static constexpr uint64_t kLeftMask = (uint64_t{1} << 32) - 1;

  std::vector<std::thread> threads_;
  // Held through a loop by the thread that started it.
  std::atomic<bool> busy_{false};

  // The loop's number in the high half, against a late thread that takes an old
  // loop's index for a new one's; indices not yet taken in the low half.  Who
  // takes an index may read `task_` and `count_`: the loop cannot end before
  // that index has.
  std::atomic<uint64_t> ticket_{0};
  const Task* task_ = nullptr;
  int64_t count_ = 0;
  std::atomic<int64_t> ended_count_{0};

  Mutex mutex_;
  CondVar work_;   // ticket_ has work, or stopping_.
  CondVar ended_;  // ended_count_ reached count_.
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

// Splits [0, n) into blocks of `block` elements, the last one shorter, and
// calls task(begin, end, thread) for each.  `block` must not depend on the
// number of threads.
template <typename F>
void ParallelForBlocks(ThreadPool& pool, int64_t n, int64_t block, F task) {
  pool.ParallelFor((n + block - 1) / block, [&](int64_t i, int thread) {
    const int64_t begin = i * block;
    task(begin, begin + block < n ? begin + block : n, thread);
  });
}

}  // namespace lockstep::kernels

#endif  // KERNELS_CPU_THREAD_POOL_H_
