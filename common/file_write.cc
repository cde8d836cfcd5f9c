#include "common/file_write.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "absl/strings/str_cat.h"

namespace lockstep {

absl::Status WriteFileAtomically(const std::string& path,
                                 absl::string_view bytes) {
  // In the same folder, since a rename does not cross file systems; the
  // process id keeps two writers apart.
  const std::string draft = absl::StrCat(path, ".", getpid(), ".tmp");
  const int file =
      open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(path, ": create"));
  }
  int error = 0;
  while (!bytes.empty() && error == 0) {
    const ssize_t n = write(file, bytes.data(), bytes.size());
    if (n >= 0) {
      bytes.remove_prefix(n);
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  if (error == 0 && fsync(file) != 0) error = errno;
  if (close(file) != 0 && error == 0) error = errno;
  if (error == 0 && rename(draft.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return absl::OkStatus();
  unlink(draft.c_str());
  return absl::ErrnoToStatus(error, absl::StrCat(path, ": write"));
}

}  // namespace lockstep
