#include "worker/checkpoint/durable_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status.h"

namespace lockstep {
namespace {

// Written back as it comes: all at once, at the end, would take minutes in
// which nothing is seen to go on.
constexpr int64_t kUnsyncedBytesMax = int64_t{256} << 20;

absl::Status Failed(absl::string_view path, absl::string_view what) {
  const int error = errno;
  return absl::ErrnoToStatus(error, absl::StrCat(path, ": cannot ", what));
}

absl::Status Allocate(const std::string& path, int descriptor,
                      int64_t byte_count) {
  if (byte_count == 0) return absl::OkStatus();
  // Asked first, since allocating fills the disk before it fails.
  struct statvfs disk;
  if (fstatvfs(descriptor, &disk) != 0) return Failed(path, "fstatvfs");
  const double free_bytes =
      static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize);
  if (free_bytes < static_cast<double>(byte_count)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, ": needs ", byte_count, " bytes; the disk has ",
                     static_cast<int64_t>(free_bytes),
                     " free; make room or choose another "
                     "disk"));
  }
  int error;
  do {
    error = posix_fallocate(descriptor, 0, byte_count);
  } while (error == EINTR);
  if (error != 0) {
    return absl::ErrnoToStatus(
        error, absl::StrCat(path, ": cannot allocate ", byte_count, " bytes"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<NewFile> NewFile::Create(const std::string& path,
                                        int64_t byte_count) {
  LS_CHECK(byte_count >= 0);
  // For reading too: where the file system cannot allocate, the library does
  // it by touching every block.
  const int descriptor =
      open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0) return Failed(path, "create");
  NewFile file(path, descriptor);
  const absl::Status allocated = Allocate(path, descriptor, byte_count);
  if (!allocated.ok()) {
    unlink(path.c_str());
    return allocated;
  }
  return file;
}

NewFile::NewFile(NewFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      unsynced_bytes_(other.unsynced_bytes_) {}

NewFile::~NewFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::Status NewFile::WriteAt(int64_t offset, const void* data,
                              int64_t byte_count) {
  const char* bytes = static_cast<const char*>(data);
  constexpr int64_t kCallMax = int64_t{1} << 30;
  while (byte_count > 0) {
    const ssize_t done =
        pwrite(descriptor_, bytes,
               static_cast<size_t>(std::min(byte_count, kCallMax)), offset);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return Failed(path_, absl::StrCat("write at byte ", offset));
    bytes += done;
    offset += done;
    byte_count -= done;
    unsynced_bytes_ += done;
  }
  return unsynced_bytes_ < kUnsyncedBytesMax ? absl::OkStatus() : Sync();
}

absl::Status NewFile::Sync() {
  unsynced_bytes_ = 0;
  if (fsync(descriptor_) != 0) return Failed(path_, "sync");
  return absl::OkStatus();
}

absl::Status WriteNewFile(const std::string& path, absl::string_view content) {
  const auto byte_count = static_cast<int64_t>(content.size());
  ASSIGN_OR_RETURN(NewFile file, NewFile::Create(path, byte_count));
  RETURN_IF_ERROR(file.WriteAt(0, content.data(), byte_count));
  return file.Sync();
}

absl::Status CreateNewFolder(const std::string& path) {
  if (mkdir(path.c_str(), 0777) != 0) return Failed(path, "create folder");
  return absl::OkStatus();
}

absl::Status SyncFolder(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return Failed(path, "open folder");
  const bool synced = fsync(descriptor) == 0;
  const absl::Status status =
      synced ? absl::OkStatus() : Failed(path, "sync folder");
  close(descriptor);
  return status;
}

absl::Status PublishFolder(const std::string& temporary,
                           const std::string& final_path) {
  // rename() alone would replace an empty folder.
  if (renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, final_path.c_str(),
                RENAME_NOREPLACE) != 0) {
    return Failed(temporary, absl::StrCat("rename to ", final_path));
  }
  const std::string parent =
      std::filesystem::absolute(final_path).parent_path().string();
  return SyncFolder(parent);
}

}  // namespace lockstep
