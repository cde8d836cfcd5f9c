// Which collectives a step makes, in which order: fixed before step 0, the same
// on every rank.
//
// Buckets are reduced in the order of ReductionPlan::buckets.  What a bucket's
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
#ifndef WORKER_PARALLEL_REDUCTION_PLAN_H_
#define WORKER_PARALLEL_REDUCTION_PLAN_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/layout.h"
#include "common/sharding.h"
#include "worker/parallel/exact_unit.h"

namespace lockstep {

// Changes whenever ranks of different builds would no longer understand each
// other's collectives.
inline constexpr int kReductionProtocolVersion = 2;

// An array over the flat space, or over what a rank owns of it.
template <typename T>
struct StateArray {
  T* data = nullptr;
  bool is_owned = false;

  T* At(const TensorPiece& piece) const {
    return data + (is_owned ? piece.owned_offset : piece.range.offset);
  }
};

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
  static constexpr int kDataPart = 6;

  // Layout, buckets, stage, numeric class, protocol version, spec, data,
  // weights.
  std::array<std::string, kPartCount> parts;
  std::string whole;  // Of all parts.
};

// How the plan of a rank differs from rank 0's.
struct PlanDifference {
  int rank = 0;            // The first that does.
  std::vector<int> parts;  // Of PlanDigest; not empty.
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
