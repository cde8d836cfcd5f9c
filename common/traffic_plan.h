// What a rank sends in a step.
#ifndef COMMON_TRAFFIC_PLAN_H_
#define COMMON_TRAFFIC_PLAN_H_

#include <cstdint>

#include "common/layout.h"
#include "common/sharding.h"

namespace lockstep {

struct TrafficShape {
  int zero_stage = 0;
  int rank = 0;
  int world = 1;
  int64_t bucket_elements = 1;
  // The most micro-batches that a rank runs in a step.
  int64_t round_count = 1;
  bool tied_head = false;
};

// Bytes of payload handed to other ranks, of a step that changes parameters and
// that no evaluation precedes.
struct TrafficPlan {
  // Of gradients, with 32 bits an element, as far as the sums fit, and with 64;
  // with what proves that they do.
  int64_t reduction_bytes = 0;
  int64_t wide_reduction_bytes = 0;

  int64_t gather_bytes = 0;  // Of parameters.
  int64_t commit_bytes = 0;

  int64_t total_bytes() const {
    return reduction_bytes + gather_bytes + commit_bytes;
  }
};

// Of one reduction of a bucket of n elements; wide: with 64 bits an element.
int64_t BucketReductionBytes(int64_t n, bool wide, const TrafficShape& shape);

TrafficPlan PlanTraffic(const Layout& layout, const TrafficShape& shape);

}  // namespace lockstep

#endif  // COMMON_TRAFFIC_PLAN_H_
