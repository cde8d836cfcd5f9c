#include "common/traffic_plan.h"

#include <array>

#include "common/collective_bytes.h"
#include "common/commit_words.h"
#include "common/unit_calls.h"

namespace lockstep {
namespace {

// No product is larger, so that sums of them do not overflow.
constexpr int64_t kBytesMax = int64_t{1} << 60;

int64_t Times(int64_t count, int64_t bytes) {
  return bytes > kBytesMax / count ? kBytesMax : count * bytes;
}

// The sum over a unit's buckets, of which all but the last are alike.
template <typename F>
int64_t SumOverBuckets(const Layout& layout, int unit, int64_t bucket_elements,
                       F of_bucket) {
  const int64_t n = layout.units[unit].range.element_count;
  const int64_t rest = n % bucket_elements;
  int64_t sum = rest > 0 ? of_bucket(rest) : 0;
  if (n >= bucket_elements) {
    sum += n / bucket_elements * of_bucket(bucket_elements);
  }
  return sum;
}

// Of unit `unit`'s gradient, once.
int64_t ReductionBytes(const Layout& layout, int unit, const TrafficShape& s,
                       bool wide) {
  const int64_t n = layout.units[unit].range.element_count;
  const int64_t bucket_count = (n + s.bucket_elements - 1) / s.bucket_elements;
  return AllReduceBytes(bucket_count, s.rank, s.world) +
         SumOverBuckets(layout, unit, s.bucket_elements, [&](int64_t bucket) {
           return BucketReductionBytes(bucket, wide, s);
         });
}

// Of unit `unit`'s parameters, once.
int64_t GatherBytes(const Layout& layout, int unit, const TrafficShape& s) {
  return SumOverBuckets(layout, unit, s.bucket_elements, [&](int64_t bucket) {
    return AllGatherBytes(bucket, sizeof(float), s.rank, s.world);
  });
}

int64_t GatherBytesOfStep(const Layout& layout, const TrafficShape& s) {
  if (!ShardsOptimizer(s.zero_stage)) return 0;
  int64_t bytes = 0;
  if (!ShardsParameters(s.zero_stage)) {
    for (size_t u = 0; u < layout.units.size(); ++u) {
      bytes += GatherBytes(layout, static_cast<int>(u), s);
    }
    return bytes;
  }
  // A unit that is in its slot still is not gathered again.
  std::array<int, kUnitSlotCount> held;
  held.fill(-1);
  const auto pass = [&] {
    int64_t sum = 0;
    for (const UnitCall& call : CallsOfMicroBatch(layout, s.tied_head)) {
      if (call.kind != UnitCall::kAcquire) continue;
      int& slot = held[SlotOfUnit(layout, call.unit)];
      if (slot == call.unit) continue;
      slot = call.unit;
      sum += GatherBytes(layout, call.unit, s);
    }
    return sum;
  };
  // From the second pass on all are alike: each begins with what the one before
  // it left.
  bytes = pass();
  if (s.round_count > 1) bytes += Times(s.round_count - 1, pass());
  return bytes;
}

}  // namespace

int64_t BucketReductionBytes(int64_t n, bool wide, const TrafficShape& s) {
  // Two narrow elements are a word.
  const int64_t word_count = wide ? n : (n + 1) / 2;
  const int64_t part = ShardSize(n, s.world) / (wide ? 1 : 2);
  return ShardsOptimizer(s.zero_stage)
             ? ReduceScatterBytes(word_count, part, s.rank, s.world)
             : AllReduceBytes(word_count, s.rank, s.world);
}

TrafficPlan PlanTraffic(const Layout& layout, const TrafficShape& s) {
  TrafficPlan plan;
  if (s.world == 1) return plan;
  const int64_t reduction_count =
      ShardsGradients(s.zero_stage) ? s.round_count : 1;
  for (size_t u = 0; u < layout.units.size(); ++u) {
    const int unit = static_cast<int>(u);
    plan.reduction_bytes += ReductionBytes(layout, unit, s, /*wide=*/false);
    plan.wide_reduction_bytes += ReductionBytes(layout, unit, s, /*wide=*/true);
  }
  plan.reduction_bytes = Times(reduction_count, plan.reduction_bytes);
  plan.wide_reduction_bytes = Times(reduction_count, plan.wide_reduction_bytes);
  plan.gather_bytes = GatherBytesOfStep(layout, s);
  const auto tensor_count = static_cast<int64_t>(layout.tensors.size());
  plan.commit_bytes =
      AllReduceBytes(CommitMaximaWords(tensor_count), s.rank, s.world) +
      AllReduceBytes(CommitSumsWords(tensor_count), s.rank, s.world);
  return plan;
}

}  // namespace lockstep
