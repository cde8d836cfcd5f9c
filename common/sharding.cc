#include "common/sharding.h"

#include <algorithm>

namespace lockstep {

ReductionPlan MakeReductionPlan(const Layout& layout, int64_t bucket_elements) {
  ReductionPlan plan;
  plan.first_bucket.resize(layout.units.size());
  plan.bucket_count.resize(layout.units.size());
  for (int u = static_cast<int>(layout.units.size()) - 1; u >= 0; --u) {
    plan.first_bucket[u] = static_cast<int>(plan.buckets.size());
    for (const FlatRange& range :
         CutBuckets(layout.units[u].range, bucket_elements)) {
      plan.buckets.push_back({u, range});
    }
    plan.bucket_count[u] =
        static_cast<int>(plan.buckets.size()) - plan.first_bucket[u];
  }
  return plan;
}

OwnedShards ShardsOf(const Layout& layout, const ReductionPlan& plan, int rank,
                     int world) {
  OwnedShards owned;
  owned.shards.resize(plan.buckets.size());
  owned.offsets.resize(plan.buckets.size());
  for (size_t u = 0; u < layout.units.size(); ++u) {
    for (int i = 0; i < plan.bucket_count[u]; ++i) {
      const int b = plan.first_bucket[u] + i;
      const FlatRange shard = ShardOf(plan.buckets[b].range, rank, world);
      owned.shards[b] = shard;
      owned.offsets[b] = owned.element_count;
      const int64_t shard_end = shard.offset + shard.element_count;
      const Unit& unit = layout.units[u];
      for (int t = unit.first_tensor; t < unit.end_tensor; ++t) {
        const Tensor& tensor = layout.tensors[t];
        const int64_t begin = std::max(shard.offset, tensor.offset);
        const int64_t end =
            std::min(shard_end, tensor.offset + tensor.element_count);
        if (begin >= end) continue;
        owned.pieces.push_back({t,
                                {begin, end - begin},
                                owned.element_count + begin - shard.offset});
      }
      owned.element_count += shard.element_count;
    }
  }
  return owned;
}

int64_t OwnedElementCount(const Layout& layout, int64_t bucket_elements,
                          int rank, int world) {
  // Buckets of one size are alike, and there may be very many.
  const auto shard = [&](int64_t n) {
    return ShardOf({0, n}, rank, world).element_count;
  };
  int64_t count = 0;
  for (const Unit& unit : layout.units) {
    const int64_t n = unit.range.element_count;
    count += n / bucket_elements * shard(bucket_elements) +
             shard(n % bucket_elements);
  }
  return count;
}

int SlotOfUnit(const Layout& layout, int unit) {
  const int head = static_cast<int>(layout.units.size()) - 1;
  if (unit == 0) return 0;
  if (unit < head) return 1 + unit % 2;
  return layout.Find(TensorRole::kHeadWeight) >= 0 ? 0 : 3;
}

UnitSlots SlotSizes(const Layout& layout) {
  UnitSlots sizes = {};
  for (size_t u = 0; u < layout.units.size(); ++u) {
    int64_t& size = sizes[SlotOfUnit(layout, static_cast<int>(u))];
    size = std::max(size, layout.units[u].range.element_count);
  }
  return sizes;
}

StateSizes StateSizesOf(const Layout& layout, int zero_stage,
                        int64_t owned_count, bool bfloat16) {
  const int64_t all = layout.element_count;
  StateSizes sizes;
  sizes.parameters = ShardsParameters(zero_stage) ? owned_count : all;
  sizes.accumulators = ShardsGradients(zero_stage) ? owned_count : all;
  sizes.moments = ShardsOptimizer(zero_stage) ? owned_count : all;
  if (ShardsGradients(zero_stage)) sizes.staging_units = SlotSizes(layout);
  if (ShardsParameters(zero_stage)) sizes.gathered_units = SlotSizes(layout);
  if (bfloat16) {
    sizes.rounded_units = sizes.gathered_units;
    sizes.rounded = ShardsParameters(zero_stage) ? 0 : all;
  }
  return sizes;
}

}  // namespace lockstep
