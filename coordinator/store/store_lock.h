// One process at a time on a store.
#ifndef COORDINATOR_STORE_STORE_LOCK_H_
#define COORDINATOR_STORE_STORE_LOCK_H_

#include <string>

#include "absl/status/statusor.h"

namespace lockstep {

// Holds a folder's lock file for its own lifetime; the kernel lets go of it
// when the process ends, however it ends.
class StoreLock {
 public:
  // Errors:
  //   FailedPrecondition: another process holds it; the message says which.
  //   PermissionDenied and so on: the file cannot be opened.
  static absl::StatusOr<StoreLock> Acquire(const std::string& folder);
  StoreLock(StoreLock&& other) noexcept;
  StoreLock& operator=(StoreLock&&) = delete;
  ~StoreLock();

 private:
  explicit StoreLock(int file) : file_(file) {}
  int file_ = -1;
};

}  // namespace lockstep

#endif  // COORDINATOR_STORE_STORE_LOCK_H_
