// How the flat space is cut into buckets and split over ranks, and what of it a
// rank holds at each ZeRO stage.
//
// Units are reduced in the order in which backward finishes them, the reverse
// of forward order; a unit's buckets from front to back.  Every bucket is split
// evenly over ranks, at every stage: a rank owns its shards.  At stage 0 that
// only says which rank measures which elements.
#ifndef COMMON_SHARDING_H_
#define COMMON_SHARDING_H_

#include <array>
#include <cstdint>
#include <vector>

#include "common/layout.h"

namespace lockstep {

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

// OwnedShards::element_count alone, of buckets of so many elements.
int64_t OwnedElementCount(const Layout& layout, int64_t bucket_elements,
                          int rank, int world);

// Of ZeRO: which parts of the state a rank holds its shards of only.
inline constexpr int kZeroStageMax = 3;
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
using UnitSlots = std::array<int64_t, kUnitSlotCount>;
UnitSlots SlotSizes(const Layout& layout);

// Elements of the arrays that hold a rank's part of the model's state.
struct StateSizes {
  int64_t parameters = 0;      // float32.
  UnitSlots gathered_units{};  // float32; at stage 3.
  int64_t rounded = 0;         // bfloat16, with such products; not at stage 3,
  UnitSlots rounded_units{};   // where these take its place.
  int64_t accumulators = 0;    // int64.
  UnitSlots staging_units{};   // int64; at stages 2 and 3.
  int64_t moments = 0;         // float32, of each of two.
};

// owned_count: OwnedShards::element_count.
StateSizes StateSizesOf(const Layout& layout, int zero_stage,
                        int64_t owned_count, bool bfloat16);

}  // namespace lockstep

#endif  // COMMON_SHARDING_H_
