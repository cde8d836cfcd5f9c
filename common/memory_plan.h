// The memory of a rank that trains, from what is known before it starts.
//
// Device memory is exact: what the trainer allocates, which takes its sizes
// from StateSizesOf and PlaceDecoderArrays.
#ifndef COMMON_MEMORY_PLAN_H_
#define COMMON_MEMORY_PLAN_H_

#include <algorithm>
#include <array>
#include <cstdint>

#include "common/decoder_arrays.h"
#include "common/layout.h"
#include "common/model_config.h"
#include "common/sharding.h"

namespace lockstep {

// What one rank trains.
struct TrainingShape {
  DecoderShape decoder;
  int64_t bucket_bytes = 0;  // Of float32 elements.
  int zero_stage = 0;
  int rank = 0;
  int world = 1;
  bool checkpoints = false;  // Are made.
};

enum class MemoryItem {
  kParameters,     // float32; at stage 3 the rank's shards.
  kRounded,        // The same in bfloat16, where products are.
  kGatheredUnits,  // Slots for whole units, both precisions; at stage 3.
  kAccumulators,   // Exact sums, 64 bits; from stage 2 on the rank's shards.
  kStagingUnits,   // Slots that whole units are summed in; from stage 2 on.
  kOptimizer,      // Two moments; from stage 1 on the rank's shards.
  kActivations,    // Kept from forward for backward.
  kGradients,      // On their way, in backward.
  kLogits,         // A slice of them.
  kWorkspace,      // Of kernels.
  kCommit,         // What a step's commit sums up.
};
inline constexpr int kMemoryItemCount = 11;

// On a CPU, what a trainer's process takes beside: code, libraries and their
// buffers, pages that are not full.  Measured as the peak resident set less
// device memory, of models with 0.1 to 2.6 GiB of it: 33 to 56 MiB with one
// thread, 35 to 82 with two; 27 with the smallest of models.
inline constexpr int64_t kProcessBytes = int64_t{44} << 20;

struct MemoryPlan {
  std::array<int64_t, kMemoryItemCount> bytes = {};  // By MemoryItem.

  int64_t& operator[](MemoryItem item) { return bytes[static_cast<int>(item)]; }
  int64_t operator[](MemoryItem item) const {
    return bytes[static_cast<int>(item)];
  }

  // Device memory from the first step on: the sum of `bytes`.
  int64_t device_bytes = 0;

  // Device memory while parameters are loaded.
  int64_t load_device_bytes = 0;

  // Host memory in which units are read and written, one at a time; in loading
  // and in saving only.
  int64_t host_unit_bytes = 0;

  // Host memory of the copy that checkpoints are written from.
  int64_t checkpoint_bytes = 0;

  // Where the device is the host's processor: all that the process has.
  int64_t load_bytes() const {
    return kProcessBytes + load_device_bytes + host_unit_bytes;
  }
  int64_t training_bytes() const {
    return kProcessBytes + device_bytes + checkpoint_bytes;
  }
  int64_t save_bytes() const { return training_bytes() + host_unit_bytes; }
  int64_t peak_bytes() const { return std::max(load_bytes(), save_bytes()); }
};

// The memory that a rank needs at each ZeRO stage, at its height, on a worker
// with any number of threads.
struct MemoryNeeds {
  std::array<int64_t, kZeroStageMax + 1> stage_bytes = {};  // But workspace.

  // Workspace is the larger of these, the latter times the threads.
  int64_t workspace_bytes = 0;
  int64_t thread_workspace_bytes = 0;

  int64_t Of(int zero_stage, int thread_count) const {
    return stage_bytes[zero_stage] +
           std::max(workspace_bytes, thread_count * thread_workspace_bytes);
  }
  friend bool operator==(const MemoryNeeds&, const MemoryNeeds&) = default;
};

// Of rank 0, which needs the most.
MemoryNeeds MemoryNeedsOf(const ModelConfig& config, const Layout& layout,
                          const DecoderShape& decoder, int64_t bucket_bytes,
                          int world, bool checkpoints);

// layout: MakeLayout(config).
MemoryPlan PlanMemory(const ModelConfig& config, const Layout& layout,
                      const TrainingShape& shape);

}  // namespace lockstep

#endif  // COMMON_MEMORY_PLAN_H_
