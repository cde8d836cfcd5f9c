#include "coordinator/store/store_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace lockstep {

absl::StatusOr<StoreLock> StoreLock::Acquire(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/lock");
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(path, ": open"));
  }
  StoreLock lock(file);
  int result;
  do {
    result = flock(file, LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  if (result != 0) {
    if (errno != EWOULDBLOCK) {
      return absl::ErrnoToStatus(errno, absl::StrCat(path, ": lock"));
    }
    char text[32] = {};
    const ssize_t size = pread(file, text, sizeof text - 1, 0);
    int64_t holder = 0;
    const bool known =
        size > 0 && absl::SimpleAtoi(absl::string_view(text, size), &holder);
    return absl::FailedPreconditionError(absl::StrCat(
        folder, ": in use by ",
        known ? absl::StrCat("process ", holder) : "another process",
        "; stop that coordinator, or give this one another store"));
  }
  const std::string self = absl::StrCat(getpid(), "\n");
  if (ftruncate(file, 0) != 0 || pwrite(file, self.data(), self.size(), 0) !=
                                     static_cast<ssize_t>(self.size())) {
    return absl::ErrnoToStatus(errno, absl::StrCat(path, ": write"));
  }
  return lock;
}

StoreLock::StoreLock(StoreLock&& other) noexcept
    : file_(std::exchange(other.file_, -1)) {}

// The file stays: to remove it would let two processes lock two files.
StoreLock::~StoreLock() {
  if (file_ >= 0) close(file_);
}

}  // namespace lockstep
