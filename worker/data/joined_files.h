// Files of fixed-size units read as one: the content of the first, then of the
// second, and so on.
//
// Files stay open, but for the ones beyond kOpenFilesMax, which are opened for
// each read.  They must not change meanwhile: one that was cut is reported; one
// that was rewritten in place is not noticed.
#ifndef WORKER_DATA_JOINED_FILES_H_
#define WORKER_DATA_JOINED_FILES_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/random_access_file.h"

namespace lockstep {

// What of a file is content.
struct FileForm {
  int64_t header_bytes = 0;  // Before the content; at most the file's size.
  int unit_bytes = 1;        // The content's size is a multiple of it.
};

// Thread-safe.
class JoinedFiles {
 public:
  // The usual limit of a process is 1,024.
  static constexpr int kOpenFilesMax = 256;

  // Opens every file; `form_of` may read it.  `field` names them in messages.
  //
  // Errors (each names the file, what is wrong and what would be right):
  //   InvalidArgument: a file is not a regular one, has no content, its size
  //     does not fit its form, or its unit is not that of the others.
  //   Otherwise: a file cannot be opened; form_of's.
  static absl::StatusOr<JoinedFiles> Open(
      const std::string& field, const std::vector<std::string>& paths,
      const std::function<absl::StatusOr<FileForm>(const RandomAccessFile&)>&
          form_of);

  int file_count() const { return static_cast<int>(files_.size()); }
  const std::string& path(int file) const { return files_[file].path; }
  // Of content.
  int64_t byte_count(int file) const { return files_[file].byte_count; }
  int64_t byte_count() const {
    return files_.back().first_byte + files_.back().byte_count;
  }
  int unit_bytes() const { return unit_bytes_; }
  int64_t unit_count() const { return byte_count() / unit_bytes_; }

  // Fills out[0, count) from byte `begin` of the joined content, inside which
  // the range must lie.
  //
  // Errors:
  //   DataLoss, Unavailable, ...: a file cannot be read, or has changed.
  absl::Status Read(int64_t begin, int64_t count, unsigned char* out) const;

  // Where a byte of the joined content stands: "PATH: byte N", of the file.
  std::string PlaceOf(int64_t byte) const;

 private:
  struct File {
    std::string path;
    int64_t header_bytes = 0;
    int64_t first_byte = 0;  // In the joined content.
    int64_t byte_count = 0;  // Of content; positive.
    int64_t size = 0;
    std::optional<RandomAccessFile> open;
  };

  const File& FileAt(int64_t byte) const;

  std::vector<File> files_;
  int unit_bytes_ = 1;
};

}  // namespace lockstep

#endif  // WORKER_DATA_JOINED_FILES_H_
