// Which collectives a step makes, in which order: fixed before step 0, the same
// on every rank.
//
// Units are reduced in the order in which backward finishes them, the reverse
// of forward order; a unit's buckets from front to back.  What a bucket's
// reduction is, and how often, depends on the ZeRO stage:
//
//   0  all-reduce                         once a step
//   1  reduce-scatter                     once a step
//   2  reduce-scatter                     once a round
//   3  reduce-scatter                     once a round
//
// A round is one micro-batch on every rank that has one left; the others take
// part with zeros.  After the reductions come the two all-reduces of the
// commit, and from stage 1 on parameters are gathered (parameter_store.h).
//
// Every bucket is split evenly over ranks, at every stage: a rank owns its
// shards.  At stage 0 that only says which rank measures which elements.
#ifndef WORKER_PARALLEL_REDUCTION_PLAN_H_
#define WORKER_PARALLEL_REDUCTION_PLAN_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/layout.h"
#include "worker/parallel/exact_unit.h"

namespace lockstep {

// Changes whenever ranks of different builds would no longer understand each
// other's collectives.
inline constexpr int kReductionProtocolVersion = 2;

struct Bucket {
  int unit = 0;     // Index into Layout::units.
  FlatRange range;  // Of the flat space.
};

// Consecutive elements of one tensor, in one bucket.
struct TensorPiece {
  int tensor = 0;            // Index into Layout::tensors.
  FlatRange range;           // Of the flat space.
  int64_t owned_offset = 0;  // Where they begin in the owner's space.

  friend bool operator==(const TensorPiece&, const TensorPiece&) = default;
};

// What a rank owns.  Its space holds its shards of all buckets, one behind the
// other in flat order: in a world of one it is the flat space.
struct OwnedShards {
  // As ReductionPlan::buckets.
  std::vector<FlatRange> shards;  // Of the flat space.
  std::vector<int64_t> offsets;   // Where they begin in the owner's space.

  std::vector<TensorPiece> pieces;  // All but padding, in flat order.
  int64_t element_count = 0;        // Of the owner's space.
};

// An array over the flat space, or over what a rank owns of it.
template <typename T>
struct StateArray {
  T* data = nullptr;
  bool is_owned = false;

  T* At(const TensorPiece& piece) const {
    return data + (is_owned ? piece.owned_offset : piece.range.offset);
  }
};

struct ReductionPlan {
  // In the order of reduction.
  std::vector<Bucket> buckets;

  // Buckets of unit u: [first_bucket[u], first_bucket[u] + bucket_count[u]).
  std::vector<int> first_bucket;
  std::vector<int> bucket_count;
};

// bucket_elements: positive.
ReductionPlan MakeReductionPlan(const Layout& layout, int64_t bucket_elements);

// Over all ranks every element of every tensor is in exactly one piece.
OwnedShards ShardsOf(const Layout& layout, const ReductionPlan& plan, int rank,
                     int world);

// Of ZeRO: which parts of the state a rank holds its shards of only.
inline bool ShardsOptimizer(int zero_stage) { return zero_stage >= 1; }
inline bool ShardsGradients(int zero_stage) { return zero_stage >= 2; }
inline bool ShardsParameters(int zero_stage) { return zero_stage >= 3; }

// In which of a few slots of memory a unit is put for as long as it is needed,
// so that the units that are needed at once, or one after the other, have
// different ones:
//
//   0     the embedding, and a head with a weight of its own
//   1, 2  blocks, in turn
//   3     a head whose weight is the embedding's
inline constexpr int kUnitSlotCount = 4;
int SlotOfUnit(const Layout& layout, int unit);

// Elements of each slot.
std::array<int64_t, kUnitSlotCount> SlotSizes(const Layout& layout);

// What the steps begin from, each by a digest of the caller's.
struct InputDigests {
  std::string spec;
  std::string data;
  std::string weights;
};

// SHA-256, in hexadecimal, of what all ranks must agree on; by part, so that a
// difference can be named.
struct PlanDigest {
  static constexpr int kPartCount = 8;
  static const char* const kPartNames[kPartCount];

  // Layout, buckets, stage, numeric class, protocol version, spec, data,
  // weights.
  std::array<std::string, kPartCount> parts;
  std::string whole;  // Of all parts.
};

// Everything about the order of collectives that layout and buckets leave open.
struct StageDigestInput {
  int zero_stage = 0;
  int64_t round_count = 0;
};

PlanDigest DigestOf(const Layout& layout, const ReductionPlan& plan,
                    const StageDigestInput& stage, const ExactScale& scale,
                    absl::string_view numeric_class,
                    const InputDigests& inputs);

}  // namespace lockstep

#endif  // WORKER_PARALLEL_REDUCTION_PLAN_H_
