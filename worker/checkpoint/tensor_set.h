// The tensors of a saved state, whether in one file or in several.
#ifndef WORKER_CHECKPOINT_TENSOR_SET_H_
#define WORKER_CHECKPOINT_TENSOR_SET_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/checkpoint/safetensors.h"

namespace lockstep {

// Thread-safe.
class TensorSet {
 public:
  struct Entry {
    const TensorInfo* info = nullptr;
    const SafetensorsFile* file = nullptr;
  };

  // `path`: a .safetensors file, or a folder with model.safetensors or with
  // model.safetensors.index.json and the files it names.  Reads headers only.
  //
  // Errors (each names the file, and the tensor where there is one):
  //   NotFound: nothing there, or a folder without either.
  //   InvalidArgument: a file breaks the format (see SafetensorsFile); the
  //     folder has both forms; the index is malformed, names a file outside
  //     the folder, or disagrees with the files on which tensors there are.
  static absl::StatusOr<TensorSet> Open(const std::string& path);

  // By name.  Valid as long as the set is.
  const std::map<std::string, Entry>& tensors() const { return tensors_; }

 private:
  TensorSet() = default;

  absl::Status OpenShards(const std::string& folder, const std::string& index);
  absl::Status AddFile(const std::string& path);

  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Entry> tensors_;
};

}  // namespace lockstep

#endif  // WORKER_CHECKPOINT_TENSOR_SET_H_
