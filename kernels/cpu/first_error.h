// The first error of a loop's tasks.
#ifndef KERNELS_CPU_FIRST_ERROR_H_
#define KERNELS_CPU_FIRST_ERROR_H_

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/mutex.h"

namespace lockstep::kernels::cpu {

// Thread-safe.
class FirstError {
 public:
  void Update(absl::Status status) {
    if (status.ok()) return;
    MutexLock lock(&mutex_);
    if (status_.ok()) status_ = std::move(status);
  }
  absl::Status Take() {
    MutexLock lock(&mutex_);
    return std::move(status_);
  }

 private:
  Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lockstep::kernels::cpu

#endif  // KERNELS_CPU_FIRST_ERROR_H_
