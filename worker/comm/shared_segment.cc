#include "worker/comm/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace lockstep {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

absl::Status SystemError(absl::string_view what) {
  const std::string text = absl::StrCat(what, ": ", std::strerror(errno));
  return errno == ENOMEM || errno == ENOSPC ? absl::ResourceExhaustedError(text)
                                            : absl::UnavailableError(text);
}

}  // namespace

absl::StatusOr<SharedSegment> SharedSegment::Create(int64_t bytes) {
  UniqueFd fd(memfd_create("lockstep-ranks", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.has_value()) return SystemError("memfd_create");
  if (const int error = posix_fallocate(fd.get(), 0, bytes); error != 0) {
    errno = error;
    return SystemError(absl::StrCat("allocating ", bytes, " bytes of a memfd"));
  }
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return SystemError("sealing a memfd");
  }
  void* data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return SystemError("mmap of a memfd");
  return SharedSegment(std::move(fd), static_cast<char*>(data), bytes);
}

absl::StatusOr<SharedSegment> SharedSegment::Map(UniqueFd fd, int64_t bytes,
                                                 int64_t writable_bytes) {
  struct stat about;
  if (fstat(fd.get(), &about) != 0 || about.st_size != bytes ||
      (fcntl(fd.get(), F_GET_SEALS) & kSeals) != kSeals) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a sealed memfd of ", bytes, " bytes"));
  }
  void* data = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return SystemError("mmap of another's memfd");
  SharedSegment segment({}, static_cast<char*>(data), bytes);
  if (mprotect(data, writable_bytes, PROT_READ | PROT_WRITE) != 0) {
    return SystemError("mprotect of another's memfd");
  }
  return segment;
}

SharedSegment::~SharedSegment() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace lockstep
