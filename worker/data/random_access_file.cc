#include "worker/data/random_access_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace lockstep {

absl::StatusOr<RandomAccessFile> RandomAccessFile::Open(
    const std::string& path) {
  // Without O_NONBLOCK opening a pipe would wait for a writer.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot open"));
  }
  RandomAccessFile file(path, descriptor, 0);
  struct stat info;
  if (fstat(descriptor, &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot fstat"));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, S_ISDIR(info.st_mode) ? ": is a directory" : ": is no file",
        "; expected a regular file"));
  }
  file.size_ = info.st_size;
  return file;
}

RandomAccessFile::RandomAccessFile(RandomAccessFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_(other.size_) {}

RandomAccessFile& RandomAccessFile::operator=(
    RandomAccessFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_, other.size_);
  return *this;
}

RandomAccessFile::~RandomAccessFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::Status RandomAccessFile::ReadAt(int64_t offset, int64_t byte_count,
                                      void* out) const {
  LS_CHECK(0 <= offset && 0 <= byte_count && byte_count <= size_ - offset);
  auto* bytes = static_cast<char*>(out);
  // Linux transfers at most 2^31 - 4096 bytes a call.
  constexpr int64_t kCallMax = int64_t{1} << 30;
  while (byte_count > 0) {
    const ssize_t got =
        pread(descriptor_, bytes,
              static_cast<size_t>(std::min(byte_count, kCallMax)), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return absl::ErrnoToStatus(
          errno, absl::StrCat(path_, ": cannot read at byte ", offset));
    }
    if (got == 0) {
      return absl::DataLossError(absl::StrCat(
          path_, ": ends before byte ", offset, "; it had ", size_,
          " bytes when it was opened and was cut since; restore it"));
    }
    bytes += got;
    offset += got;
    byte_count -= got;
  }
  return absl::OkStatus();
}

}  // namespace lockstep
