#include "worker/checkpoint/state_hash.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/sha256.h"
#include "common/status.h"
#include "worker/checkpoint/tensor_set.h"

namespace lockstep {
namespace {

void UpdateText(Sha256& hash, absl::string_view text) {
  hash.UpdateInteger(text.size());
  hash.Update(text);
}

// Begins the hash of a state.
class StateHasher {
 public:
  explicit StateHasher(size_t tensor_count) : block_(1 << 20) {
    hash_.Update("lockstep state 1\n");
    hash_.UpdateInteger(tensor_count);
  }

  // The next tensor; `read` fills `out` with bytes [offset, offset + count).
  absl::Status Add(
      const std::string& name, Dtype dtype, const std::vector<int64_t>& shape,
      int64_t byte_count,
      absl::FunctionRef<absl::Status(int64_t offset, int64_t count, char* out)>
          read) {
    UpdateText(hash_, name);
    UpdateText(hash_, DtypeName(dtype));
    hash_.UpdateInteger(shape.size());
    for (int64_t dim : shape) hash_.UpdateInteger(static_cast<uint64_t>(dim));
    hash_.UpdateInteger(static_cast<uint64_t>(byte_count));
    const auto block_bytes = static_cast<int64_t>(block_.size());
    for (int64_t done = 0; done < byte_count; done += block_bytes) {
      const int64_t part = std::min(block_bytes, byte_count - done);
      RETURN_IF_ERROR(read(done, part, block_.data()));
      hash_.Update(block_.data(), part);
    }
    return absl::OkStatus();
  }

  std::string HexDigest() { return hash_.HexDigest(); }

 private:
  Sha256 hash_;
  std::vector<char> block_;  // A multiple of every element's size.
};

absl::StatusOr<std::string> HashCheckpoint(const std::string& folder) {
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(folder));
  struct Entry {
    int kind;
    int tensor;
  };
  std::map<std::string, Entry> entries;
  const std::vector<Tensor>& tensors = checkpoint.layout().tensors;
  for (int t = 0; t < static_cast<int>(tensors.size()); ++t) {
    for (int kind = 0; kind < kStateKindCount; ++kind) {
      entries[absl::StrCat(kStateKindNames[kind], "/", tensors[t].name)] = {
          kind, t};
    }
  }
  StateHasher hasher(entries.size() + 1);
  constexpr int64_t kFloat = sizeof(float);
  for (const auto& [name, entry] : entries) {
    const Tensor& tensor = tensors[entry.tensor];
    RETURN_IF_ERROR(hasher.Add(
        name, Dtype::kF32, tensor.shape, tensor.element_count * kFloat,
        [&, e = entry](int64_t offset, int64_t count, char* out) {
          return checkpoint.Read(e.kind, e.tensor, offset / kFloat,
                                 count / kFloat, reinterpret_cast<float*>(out));
        }));
  }
  const std::string text = StateTextOf(checkpoint.info());
  const auto size = static_cast<int64_t>(text.size());
  RETURN_IF_ERROR(hasher.Add("state", Dtype::kU8, {size}, size,
                             [&](int64_t offset, int64_t count, char* out) {
                               std::copy_n(text.data() + offset, count, out);
                               return absl::OkStatus();
                             }));
  return hasher.HexDigest();
}

}  // namespace

std::string StateTextOf(const CheckpointInfo& info) {
  std::string text = absl::StrCat(
      "step_count ", info.step_count, " update_count ", info.update_count,
      " skipped_in_a_row ", info.skipped_in_a_row, " unit_powers");
  for (const std::vector<int32_t>& powers : info.unit_powers) {
    absl::StrAppend(&text, " [", absl::StrJoin(powers, ","), "]");
  }
  return text;
}

absl::StatusOr<std::string> HashState(const std::string& path) {
  if (IsCheckpoint(path)) return HashCheckpoint(path);
  ASSIGN_OR_RETURN(const TensorSet set, TensorSet::Open(path));
  StateHasher hasher(set.tensors().size());
  for (const auto& [name, entry] : set.tensors()) {
    RETURN_IF_ERROR(hasher.Add(
        name, entry.info->dtype, entry.info->shape, entry.info->byte_count,
        [e = entry](int64_t offset, int64_t count, char* out) {
          return e.file->Read(*e.info, offset, count, out);
        }));
  }
  return hasher.HexDigest();
}

}  // namespace lockstep
