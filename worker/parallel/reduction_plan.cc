#include "worker/parallel/reduction_plan.h"

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
