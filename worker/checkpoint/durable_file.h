// Writing files and folders that are there after a crash, or not at all.
//
// The pattern: create a temporary folder exclusively, fill it, sync every file
// and the folder, then rename it to its name and sync its parent.
#ifndef WORKER_CHECKPOINT_DURABLE_FILE_H_
#define WORKER_CHECKPOINT_DURABLE_FILE_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep {

// A file being written.  One thread at a time.
class NewFile {
 public:
  // Creates it with all of its bytes allocated, so that a full disk shows now
  // and not at the end.  On an error nothing is left behind.
  //
  // Errors (all begin with the path):
  //   AlreadyExists: there is one.
  //   ResourceExhausted: the disk has not enough space; says how much it has.
  //   NotFound, PermissionDenied, ...: as open(2) says.
  static absl::StatusOr<NewFile> Create(const std::string& path,
                                        int64_t byte_count);

  NewFile(NewFile&& other) noexcept;
  NewFile& operator=(NewFile&&) = delete;
  // Closes.  Does not remove: whoever made the folder does.
  ~NewFile();

  const std::string& path() const { return path_; }

  // Errors: as pwrite(2) and fsync(2) say.
  absl::Status WriteAt(int64_t offset, const void* data, int64_t byte_count);

  // Everything written is on the disk when this returns OK.
  absl::Status Sync();

 private:
  NewFile(std::string path, int descriptor)
      : path_(std::move(path)), descriptor_(descriptor) {}

  std::string path_;
  int descriptor_ = -1;
  int64_t unsynced_bytes_ = 0;
};

// Creates and syncs a file of `content`.  Errors as NewFile's.
absl::Status WriteNewFile(const std::string& path, absl::string_view content);

// Errors:
//   AlreadyExists: something of this name is there.
//   NotFound: its parent is not.
//   PermissionDenied, ResourceExhausted, ...: as mkdir(2) says.
absl::Status CreateNewFolder(const std::string& path);

// The folder's own entries are on the disk when this returns OK.
absl::Status SyncFolder(const std::string& path);

// Gives a finished folder its name, in the same file system, and syncs the
// parent of the new name.  Never replaces anything.
//
// Errors:
//   AlreadyExists: something of the new name is there.
//   Otherwise: as rename(2) says.
absl::Status PublishFolder(const std::string& temporary,
                           const std::string& final_path);

}  // namespace lockstep

#endif  // WORKER_CHECKPOINT_DURABLE_FILE_H_
