#include "worker/parallel/reduction_plan.h"

#include <algorithm>

#include "common/sha256.h"

namespace lockstep {
namespace {

void UpdateText(Sha256& hash, absl::string_view text) {
  hash.UpdateInteger(text.size());
  hash.Update(text);
}

void UpdateRange(Sha256& hash, const FlatRange& range) {
  hash.UpdateInteger(range.offset);
  hash.UpdateInteger(range.element_count);
}

std::string LayoutDigest(const Layout& layout) {
  Sha256 hash;
  hash.UpdateInteger(layout.element_count);
  hash.UpdateInteger(layout.units.size());
  for (const Unit& u : layout.units) {
    UpdateText(hash, u.name);
    UpdateRange(hash, u.range);
  }
  hash.UpdateInteger(layout.tensors.size());
  for (const Tensor& t : layout.tensors) {
    UpdateText(hash, t.name);
    hash.UpdateInteger(t.shape.size());
    for (const int64_t size : t.shape) hash.UpdateInteger(size);
    hash.UpdateInteger(t.unit);
    UpdateRange(hash, {t.offset, t.element_count});
  }
  return hash.HexDigest();
}

std::string BucketsDigest(const ReductionPlan& plan, const ExactScale& scale) {
  Sha256 hash;
  hash.UpdateInteger(plan.buckets.size());
  for (const Bucket& b : plan.buckets) {
    hash.UpdateInteger(b.unit);
    UpdateRange(hash, b.range);
  }
  hash.UpdateInteger(scale.micro_batch_count);
  hash.UpdateInteger(scale.nominal_token_count);
  return hash.HexDigest();
}

std::string StageDigest(const StageDigestInput& stage) {
  Sha256 hash;
  hash.UpdateInteger(stage.zero_stage);
  hash.UpdateInteger(stage.round_count);
  return hash.HexDigest();
}

std::string TextDigest(absl::string_view text) {
  Sha256 hash;
  UpdateText(hash, text);
  return hash.HexDigest();
}

}  // namespace

const char* const PlanDigest::kPartNames[kPartCount] = {
    "the model's layout",
    "buckets or batch",
    "the ZeRO stage or the split of micro-batches",
    "the device's numeric class",
    "the protocol version",
    "the job's spec",
    "the contents of the data files",
    "the initial weights"};

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

int SlotOfUnit(const Layout& layout, int unit) {
  const int head = static_cast<int>(layout.units.size()) - 1;
  if (unit == 0) return 0;
  if (unit < head) return 1 + unit % 2;
  return layout.Find(TensorRole::kHeadWeight) >= 0 ? 0 : 3;
}

std::array<int64_t, kUnitSlotCount> SlotSizes(const Layout& layout) {
  std::array<int64_t, kUnitSlotCount> sizes = {};
  for (size_t u = 0; u < layout.units.size(); ++u) {
    int64_t& size = sizes[SlotOfUnit(layout, static_cast<int>(u))];
    size = std::max(size, layout.units[u].range.element_count);
  }
  return sizes;
}

PlanDigest DigestOf(const Layout& layout, const ReductionPlan& plan,
                    const StageDigestInput& stage, const ExactScale& scale,
                    absl::string_view numeric_class,
                    const InputDigests& inputs) {
  PlanDigest digest;
  digest.parts = {LayoutDigest(layout),
                  BucketsDigest(plan, scale),
                  StageDigest(stage),
                  TextDigest(numeric_class),
                  TextDigest(std::to_string(kReductionProtocolVersion)),
                  TextDigest(inputs.spec),
                  TextDigest(inputs.data),
                  TextDigest(inputs.weights)};
  Sha256 whole;
  for (const std::string& part : digest.parts) UpdateText(whole, part);
  digest.whole = whole.HexDigest();
  return digest;
}

}  // namespace lockstep
