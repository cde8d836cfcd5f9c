// Writing safetensors files.
//
// The file has its final size, on the disk, before the first tensor is written:
// a full disk shows at Create and not after the training.  Tensors stand by
// type (Dtype's order, last first), then by name; the header is padded to a
// multiple of 8, so that every tensor is aligned to its element.
#ifndef WORKER_CHECKPOINT_SAFETENSORS_WRITER_H_
#define WORKER_CHECKPOINT_SAFETENSORS_WRITER_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/checkpoint/dtype.h"
#include "worker/checkpoint/durable_file.h"

namespace lockstep {

struct TensorSpec {
  std::string name;  // Unique in the file; not "__metadata__".
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
};

// One thread at a time.
class SafetensorsWriter {
 public:
  // Creates `path` with its header, all of its bytes allocated.
  //
  // Errors:
  //   InvalidArgument: the header would be longer than readers take.
  //   AlreadyExists, ResourceExhausted, ...: as NewFile::Create says.
  static absl::StatusOr<SafetensorsWriter> Create(
      const std::string& path, std::vector<TensorSpec> tensors);

  // The next bytes of tensor `name`: little-endian, row-major.  A tensor may
  // come in any number of pieces, and tensors in any order or in turns; no
  // tensor may get more bytes than it has.
  //
  // Errors: as pwrite(2) says.
  absl::Status Append(const std::string& name, const void* data,
                      int64_t byte_count);

  // Syncs the file.  Every tensor must be complete.  The folder is the
  // caller's to sync.
  absl::Status Finish();

 private:
  struct Place {
    int64_t next = 0;  // Where in the file its next byte goes.
    int64_t end = 0;
  };

  SafetensorsWriter(NewFile file, std::map<std::string, Place> places)
      : file_(std::move(file)), places_(std::move(places)) {}

  NewFile file_;
  std::map<std::string, Place> places_;  // By tensor.
};

}  // namespace lockstep

#endif  // WORKER_CHECKPOINT_SAFETENSORS_WRITER_H_
