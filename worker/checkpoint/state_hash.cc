#include "worker/checkpoint/state_hash.h"

#include <algorithm>
#include <cstdint>
#include <vector>

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

}  // namespace

absl::StatusOr<std::string> HashState(const std::string& path) {
  ASSIGN_OR_RETURN(const TensorSet set, TensorSet::Open(path));
  Sha256 hash;
  hash.Update("lockstep state 1\n");
  hash.UpdateInteger(set.tensors().size());
  std::vector<char> block(1 << 20);
  const auto block_bytes = static_cast<int64_t>(block.size());
  for (const auto& [name, entry] : set.tensors()) {
    const TensorInfo& info = *entry.info;
    UpdateText(hash, name);
    UpdateText(hash, DtypeName(info.dtype));
    hash.UpdateInteger(info.shape.size());
    for (int64_t dim : info.shape) {
      hash.UpdateInteger(static_cast<uint64_t>(dim));
    }
    hash.UpdateInteger(static_cast<uint64_t>(info.byte_count));
    for (int64_t done = 0; done < info.byte_count; done += block_bytes) {
      const int64_t part = std::min(block_bytes, info.byte_count - done);
      RETURN_IF_ERROR(entry.file->Read(info, done, part, block.data()));
      hash.Update(block.data(), part);
    }
  }
  return hash.HexDigest();
}

}  // namespace lockstep
