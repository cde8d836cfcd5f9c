#include "common/traffic_plan.h"

#include <array>

#include "common/collective_bytes.h"
#include "common/commit_words.h"
#include "common/unit_calls.h"

namespace lockstep {
namespace {

// Of unit `unit`'s gradient, once.
int64_t ReductionBytes(const ReductionPlan& buckets, int unit,
                       const TrafficShape& s, bool wide) {
  int64_t bytes = AllReduceBytes(buckets.bucket_count[unit], s.rank, s.world);
  for (int i = 0; i < buckets.bucket_count[unit]; ++i) {
    bytes += BucketReductionBytes(
        buckets.buckets[buckets.first_bucket[unit] + i].range.element_count,
        wide, s);
  }
  return bytes;
}

// Of unit `unit`'s parameters, once.
int64_t GatherBytes(const ReductionPlan& buckets, int unit,
                    const TrafficShape& s) {
  int64_t bytes = 0;
  for (int i = 0; i < buckets.bucket_count[unit]; ++i) {
    bytes += AllGatherBytes(
        buckets.buckets[buckets.first_bucket[unit] + i].range.element_count,
        sizeof(float), s.rank, s.world);
  }
  return bytes;
}

int64_t GatherBytesOfStep(const Layout& layout, const ReductionPlan& buckets,
                          const TrafficShape& s) {
  if (!ShardsOptimizer(s.zero_stage)) return 0;
  int64_t bytes = 0;
  if (!ShardsParameters(s.zero_stage)) {
    for (size_t u = 0; u < layout.units.size(); ++u) {
      bytes += GatherBytes(buckets, static_cast<int>(u), s);
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
      sum += GatherBytes(buckets, call.unit, s);
    }
    return sum;
  };
  // From the second pass on all are alike: each begins with what the one before
  // it left.
  bytes = pass();
  if (s.round_count > 1) bytes += (s.round_count - 1) * pass();
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

TrafficPlan PlanTraffic(const Layout& layout, const ReductionPlan& buckets,
                        const TrafficShape& s) {
  TrafficPlan plan;
  if (s.world == 1) return plan;
  const int64_t reduction_count =
      ShardsGradients(s.zero_stage) ? s.round_count : 1;
  for (size_t u = 0; u < layout.units.size(); ++u) {
    const int unit = static_cast<int>(u);
    plan.reduction_bytes +=
        reduction_count * ReductionBytes(buckets, unit, s, /*wide=*/false);
    plan.wide_reduction_bytes +=
        reduction_count * ReductionBytes(buckets, unit, s, /*wide=*/true);
  }
  plan.gather_bytes = GatherBytesOfStep(layout, buckets, s);
  const auto tensor_count = static_cast<int64_t>(layout.tensors.size());
  plan.commit_bytes =
      AllReduceBytes(CommitMaximaWords(tensor_count), s.rank, s.world) +
      AllReduceBytes(CommitSumsWords(tensor_count), s.rank, s.world);
  return plan;
}

}  // namespace lockstep
