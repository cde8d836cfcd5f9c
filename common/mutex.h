// A mutex whose use clang checks (-Wthread-safety).
//
// Over std::mutex: Debian's absl::Mutex makes ThreadSanitizer report races in
// correctly locked code.
#ifndef COMMON_MUTEX_H_
#define COMMON_MUTEX_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

namespace lockstep {

class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Holds a Mutex for its own lifetime.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex)
      : mutex_(mutex) {
    mutex_->Lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mutex_;
};

// Waits may end early: callers loop over their condition.
class CondVar {
 public:
  void Wait(Mutex* mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }

  // Returns false when `timeout` passed.
  bool WaitFor(Mutex* mutex, absl::Duration timeout)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    // Waiting for longer than this overflows the library's arithmetic.
    constexpr absl::Duration kMax = absl::Hours(24);
    if (timeout > kMax) timeout = kMax;
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    const bool woken =
        condition_.wait_for(lock, absl::ToChronoNanoseconds(timeout)) ==
        std::cv_status::no_timeout;
    lock.release();
    return woken;
  }

  void Signal() { condition_.notify_one(); }
  void SignalAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace lockstep

#endif  // COMMON_MUTEX_H_
