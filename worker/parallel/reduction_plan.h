// Which collectives a step makes, in which order: fixed before step 0, the same
// on every rank.
//
// Units are reduced in the order in which backward finishes them, the reverse
// of forward order; a unit's buckets from front to back.  After them come the
// two all-reduces of the commit.  ZeRO stage 0: every bucket is all-reduced
// whole; shards only say which rank measures which elements.
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
inline constexpr int kReductionProtocolVersion = 1;

struct Bucket {
  int unit = 0;     // Index into Layout::units.
  FlatRange range;  // Of the flat space.
};

// Consecutive elements of one tensor, in one bucket.
struct TensorPiece {
  int tensor = 0;   // Index into Layout::tensors.
  FlatRange range;  // Of the flat space.
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

// The parts of tensors in rank `rank`'s shards of all buckets.  Over all ranks
// every element of every tensor is in exactly one piece.
std::vector<TensorPiece> PiecesOf(const Layout& layout,
                                  const ReductionPlan& plan, int rank,
                                  int world);

// What the steps begin from, each by a digest of the caller's.
struct InputDigests {
  std::string spec;
  std::string data;
  std::string weights;
};

// SHA-256, in hexadecimal, of what all ranks must agree on; by part, so that a
// difference can be named.
struct PlanDigest {
  static constexpr int kPartCount = 7;
  static const char* const kPartNames[kPartCount];

  // Layout, buckets, numeric class, protocol version, spec, data, weights.
  std::array<std::string, kPartCount> parts;
  std::string whole;  // Of all parts.
};

PlanDigest DigestOf(const Layout& layout, const ReductionPlan& plan,
                    const ExactScale& scale, absl::string_view numeric_class,
                    const InputDigests& inputs);

}  // namespace lockstep

#endif  // WORKER_PARALLEL_REDUCTION_PLAN_H_
