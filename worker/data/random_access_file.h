// Reading a file anywhere, with errors that say what is wrong with it.
//
// By pread and not by mmap: when a mapped file is cut short, or its disk fails,
// the process dies of SIGBUS in the middle of whatever touched the page; pread
// returns, and we say which file and where.  For the sizes we read (a sample, a
// tensor) the copy costs nothing that shows.
#ifndef WORKER_DATA_RANDOM_ACCESS_FILE_H_
#define WORKER_DATA_RANDOM_ACCESS_FILE_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep {

// One open regular file.  Thread-safe.
class RandomAccessFile {
 public:
  // Errors (all begin with the path):
  //   NotFound, PermissionDenied, ...: as open(2) says.
  //   InvalidArgument: it is a directory, or something else that is not a
  //     regular file.
  static absl::StatusOr<RandomAccessFile> Open(const std::string& path);

  RandomAccessFile(RandomAccessFile&& other) noexcept;
  RandomAccessFile& operator=(RandomAccessFile&& other) noexcept;
  ~RandomAccessFile();

  const std::string& path() const { return path_; }

  // Bytes, when it was opened.
  int64_t size() const { return size_; }

  // Fills out[0, byte_count) from `offset`.  The range must lie inside
  // [0, size()).
  //
  // Errors:
  //   DataLoss: the file ends before the range does: it was cut since it was
  //     opened.
  //   Unavailable, ...: as pread(2) says.
  absl::Status ReadAt(int64_t offset, int64_t byte_count, void* out) const;

 private:
  RandomAccessFile(std::string path, int descriptor, int64_t size)
      : path_(std::move(path)), descriptor_(descriptor), size_(size) {}

  std::string path_;
  int descriptor_ = -1;
  int64_t size_ = 0;
};

}  // namespace lockstep

#endif  // WORKER_DATA_RANDOM_ACCESS_FILE_H_
