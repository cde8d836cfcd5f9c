// Sleeping on a word of memory, also one that processes share.
#ifndef WORKER_COMM_FUTEX_H_
#define WORKER_COMM_FUTEX_H_

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <ctime>

#include "absl/time/time.h"

namespace lockstep {

static_assert(std::atomic<uint32_t>::is_always_lock_free &&
              sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

// Sleeps while the word is `expected`, until FutexWake.  Returns false when
// `timeout` passed; may end early.
inline bool FutexWait(std::atomic<uint32_t>& word, uint32_t expected,
                      absl::Duration timeout) {
  const timespec limit = absl::ToTimespec(timeout);
  return syscall(SYS_futex, &word, FUTEX_WAIT, expected, &limit, nullptr, 0) ==
             0 ||
         errno != ETIMEDOUT;
}

// The word must have been changed.
inline void FutexWake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

}  // namespace lockstep

#endif  // WORKER_COMM_FUTEX_H_
