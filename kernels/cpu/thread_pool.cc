#include "kernels/cpu/thread_pool.h"

#include <pthread.h>

#include <cstdio>

#include "common/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lockstep::kernels {
namespace {

// About 20 to 50 microseconds: longer than the serial parts between two loops
// of a step, and short enough not to take a busy machine from others.
constexpr int kSpinCount = 1000;

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int thread_count) {
  LS_CHECK(thread_count >= 1);
  threads_.reserve(thread_count - 1);
  for (int i = 1; i < thread_count; ++i) {
    threads_.emplace_back([this, i] { Run(i); });
  }
}

ThreadPool::~ThreadPool() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  work_.SignalAll();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::ParallelFor(int64_t count, Task task) {
  LS_CHECK(0 <= count && count < int64_t{1} << 31);
  if (count <= 1 || threads_.empty() || busy_.exchange(true)) {
    for (int64_t i = 0; i < count; ++i) task(i, 0);
    return;
  }
  task_ = &task;
  count_ = count;
  ended_count_.store(0);
  {
    // Under the lock, so that no thread falls asleep between its last look at
    // the ticket and the signal.
    MutexLock lock(&mutex_);
    const uint64_t loop = (ticket_.load() >> 32) + 1;
    ticket_.store(loop << 32 | static_cast<uint64_t>(count));
  }
  work_.SignalAll();
  Work(0);
  for (int i = 0; i < kSpinCount && ended_count_.load() != count; ++i) Pause();
  if (ended_count_.load() != count) {
    MutexLock lock(&mutex_);
    while (ended_count_.load() != count) ended_.Wait(&mutex_);
  }
  busy_.store(false);
}

void ThreadPool::Work(int thread) {
  uint64_t ticket = ticket_.load();
  while ((ticket & kLeftMask) != 0) {
    if (!ticket_.compare_exchange_weak(ticket, ticket - 1)) continue;
    const int64_t count = count_;
    const int64_t index = count - static_cast<int64_t>(ticket & kLeftMask);
    (*task_)(index, thread);
    if (ended_count_.fetch_add(1) + 1 == count && thread != 0) {
      MutexLock lock(&mutex_);
      ended_.SignalAll();
    }
    ticket = ticket_.load();
  }
}

void ThreadPool::Run(int thread) {
  char name[16];
  std::snprintf(name, sizeof(name), "ls-cpu-%d", thread);
  pthread_setname_np(pthread_self(), name);
  while (true) {
    for (int i = 0; i < kSpinCount && !HasWork(); ++i) Pause();
    if (!HasWork()) {
      MutexLock lock(&mutex_);
      while (!stopping_ && !HasWork()) work_.Wait(&mutex_);
      if (stopping_) return;
    }
    Work(thread);
  }
}

}  // namespace lockstep::kernels
