#include "common/memory_plan.h"

#include <algorithm>
#include <numeric>

#include "common/commit_words.h"

namespace lockstep {
namespace {

constexpr int64_t kFloat = sizeof(float);
constexpr int64_t kBfloat16 = sizeof(Bfloat16);
constexpr int64_t kWord = sizeof(int64_t);

int64_t Sum(const UnitSlots& slots) {
  return std::accumulate(slots.begin(), slots.end(), int64_t{0});
}

}  // namespace

MemoryPlan PlanMemory(const ModelConfig& config, const Layout& layout,
                      const TrainingShape& shape) {
  const int64_t owned = OwnedElementCount(layout, shape.bucket_bytes / kFloat,
                                          shape.rank, shape.world);
  const StateSizes state =
      StateSizesOf(layout, shape.zero_stage, owned, shape.decoder.bfloat16);
  DecoderArrays arrays;
  const DecoderBytes decoder =
      PlaceDecoderArrays(config, layout, shape.decoder, nullptr, arrays);
  const auto tensor_count = static_cast<int64_t>(layout.tensors.size());

  using enum MemoryItem;
  MemoryPlan plan;
  plan[kParameters] = state.parameters * kFloat;
  plan[kRounded] = state.rounded * kBfloat16;
  plan[kGatheredUnits] =
      Sum(state.gathered_units) * kFloat + Sum(state.rounded_units) * kBfloat16;
  plan.load_device_bytes =
      plan[kParameters] + plan[kRounded] + plan[kGatheredUnits];
  plan[kAccumulators] = state.accumulators * kWord;
  plan[kStagingUnits] = Sum(state.staging_units) * kWord;
  plan[kOptimizer] = 2 * state.moments * kFloat;
  plan[kActivations] = decoder[DecoderPart::kActivations];
  plan[kGradients] = decoder[DecoderPart::kGradients];
  plan[kLogits] = decoder[DecoderPart::kLogits];
  plan[kWorkspace] = decoder[DecoderPart::kWorkspace];
  plan[kCommit] = tensor_count *
                  ((1 + kSquareLimbCount) * kWord + int64_t{sizeof(int32_t)});
  plan.device_bytes =
      std::accumulate(plan.bytes.begin(), plan.bytes.end(), int64_t{0});
  for (const Unit& unit : layout.units) {
    plan.host_unit_bytes =
        std::max(plan.host_unit_bytes, unit.range.element_count * kFloat);
  }
  // A parameter and two moments of what it owns, at every stage.
  if (shape.checkpoints) plan.checkpoint_bytes = 3 * owned * kFloat;
  return plan;
}

MemoryNeeds MemoryNeedsOf(const ModelConfig& config, const Layout& layout,
                          const DecoderShape& decoder, int64_t bucket_bytes,
                          int world, bool checkpoints) {
  MemoryNeeds needs;
  const DecoderWorkspace workspace = WorkspaceOf(config, decoder);
  needs.workspace_bytes = workspace.shared_bytes;
  needs.thread_workspace_bytes = workspace.thread_bytes;
  for (int stage = 0; stage <= kZeroStageMax; ++stage) {
    const MemoryPlan plan = PlanMemory(config, layout,
                                       {.decoder = decoder,
                                        .bucket_bytes = bucket_bytes,
                                        .zero_stage = stage,
                                        .world = world,
                                        .checkpoints = checkpoints});
    needs.stage_bytes[stage] = plan.peak_bytes() - plan[MemoryItem::kWorkspace];
  }
  return needs;
}

}  // namespace lockstep
