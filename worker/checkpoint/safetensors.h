// Reading safetensors files.
//
//   u64 little-endian N | N bytes of JSON | data
//
// The JSON names for each tensor its type, shape and range of bytes from the
// start of the data, which is row-major and little-endian.
#ifndef WORKER_CHECKPOINT_SAFETENSORS_H_
#define WORKER_CHECKPOINT_SAFETENSORS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/checkpoint/dtype.h"
#include "worker/data/random_access_file.h"

namespace lockstep {

inline constexpr int64_t kSafetensorsHeaderBytesMax = 100'000'000;

struct TensorInfo {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;  // Empty for a scalar; a dimension may be 0.
  int64_t file_offset = 0;     // Of its first byte.
  int64_t byte_count = 0;      // What dtype and shape say.
};

// "[2, 3]": a shape in messages.
std::string ShapeText(const std::vector<int64_t>& shape);

// Bytes of a tensor.
//
// Errors:
//   InvalidArgument: it takes 2^63 bits or more, or no whole number of bytes.
absl::StatusOr<int64_t> TensorBytes(Dtype dtype,
                                    const std::vector<int64_t>& shape);

// One open file, checked; data is read on demand.  Thread-safe.
class SafetensorsFile {
 public:
  // Reads and checks the header.
  //
  // Errors (each begins with the path, names the byte or the tensor, and says
  // what was expected):
  //   InvalidArgument: the header is longer than kSafetensorsHeaderBytesMax or
  //     than the file, does not begin with '{', is no UTF-8 or JSON, or names a
  //     key twice; a tensor's entry lacks a field, has an unknown one, an
  //     unknown type, or a range that its shape contradicts; the ranges have
  //     gaps or overlap; the file is shorter or longer than they say.
  //   NotFound, PermissionDenied, ...: as RandomAccessFile says.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  const std::string& path() const { return file_.path(); }

  // In the order of their data.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }

  // Bytes [offset, offset + byte_count) of `tensor`, one of tensors(), into
  // `out`.
  absl::Status Read(const TensorInfo& tensor, int64_t offset,
                    int64_t byte_count, void* out) const;

 private:
  SafetensorsFile(RandomAccessFile file, std::vector<TensorInfo> tensors)
      : file_(std::move(file)), tensors_(std::move(tensors)) {}

  RandomAccessFile file_;
  std::vector<TensorInfo> tensors_;
};

}  // namespace lockstep

#endif  // WORKER_CHECKPOINT_SAFETENSORS_H_
