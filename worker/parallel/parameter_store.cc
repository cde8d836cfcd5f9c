#include "worker/parallel/parameter_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status.h"
#include "kernels/bfloat16.h"

namespace lockstep {
namespace {

using kernels::Bfloat16;

constexpr int64_t kFloat = sizeof(float);

std::vector<int> AcquiredBy(const std::vector<UnitCall>& calls) {
  std::vector<int> units;
  for (const UnitCall& call : calls) {
    if (call.kind == UnitCall::kAcquire) units.push_back(call.unit);
  }
  return units;
}

std::vector<UnitCall> CallsOf(Pass pass, const Layout& layout, bool tied_head) {
  switch (pass) {
    case Pass::kMicroBatch:
      return CallsOfMicroBatch(layout, tied_head);
    case Pass::kEvaluation:
      return CallsOfEvaluation(layout, tied_head);
    case Pass::kWeights:
      break;
  }
  std::vector<UnitCall> calls;
  for (int unit = 0; unit < static_cast<int>(layout.units.size()); ++unit) {
    calls.push_back({UnitCall::kAcquire, unit});
    calls.push_back({UnitCall::kRelease, unit});
  }
  return calls;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ParameterStore>> ParameterStore::Create(
    const Layout& layout, const Options& options, kernels::Stream& stream,
    Clock& clock) {
  // Communicators take host memory, which only this backend computes in.
  LS_CHECK(stream.backend() == kernels::Backend::kCpu);
  std::unique_ptr<ParameterStore> store(
      new ParameterStore(layout, options, stream, clock));
  RETURN_IF_ERROR(store->Allocate());
  return store;
}

ParameterStore::ParameterStore(const Layout& layout, const Options& options,
                               kernels::Stream& stream, Clock& clock)
    : layout_(layout),
      options_(options),
      stream_(stream),
      clock_(clock),
      plan_(MakeReductionPlan(layout, options.bucket_bytes / kFloat)),
      owned_(ShardsOf(layout, plan_, options.rank, options.world)),
      uses_({AcquiredBy(CallsOf(Pass::kMicroBatch, layout, options.tied_head)),
             AcquiredBy(CallsOf(Pass::kEvaluation, layout, options.tied_head)),
             AcquiredBy(CallsOf(Pass::kWeights, layout, options.tied_head))}) {}

ParameterStore::~ParameterStore() {
  // Its tasks use this object's memory.
  if (comm_ != nullptr) comm_->Wait().IgnoreError();
}

absl::Status ParameterStore::Allocate() {
  kernels::Device& device = stream_.device();
  constexpr int64_t kRounded = sizeof(Bfloat16);
  const StateSizes sizes = StateSizesOf(layout_, options_.zero_stage,
                                        owned_.element_count, rounds());
  ASSIGN_OR_RETURN(values_, device.Allocate(sizes.parameters * kFloat));
  if (ShardsParameters(options_.zero_stage)) {
    for (int s = 0; s < kUnitSlotCount; ++s) {
      ASSIGN_OR_RETURN(slots_[s].values,
                       device.Allocate(sizes.gathered_units[s] * kFloat));
      if (rounds()) {
        ASSIGN_OR_RETURN(slots_[s].rounded,
                         device.Allocate(sizes.rounded_units[s] * kRounded));
      }
      ASSIGN_OR_RETURN(slots_[s].released, device.CreateEvent());
      RETURN_IF_ERROR(stream_.Record(*slots_[s].released));
    }
    return absl::OkStatus();
  }
  if (rounds()) {
    ASSIGN_OR_RETURN(rounded_, device.Allocate(sizes.rounded * kRounded));
  }
  for (size_t u = 0; u < layout_.units.size(); ++u) {
    ASSIGN_OR_RETURN(updated_.emplace_back(), device.CreateEvent());
  }
  gathers_.resize(layout_.units.size());
  is_rounded_.resize(layout_.units.size());
  return absl::OkStatus();
}

absl::Status ParameterStore::Load(
    const std::function<absl::Status(int unit, float* values)>& read) {
  int64_t largest = 0;
  for (const Unit& unit : layout_.units) {
    largest = std::max(largest, unit.range.element_count);
  }
  std::vector<float> host(largest);
  for (int u = 0; u < static_cast<int>(layout_.units.size()); ++u) {
    const FlatRange& range = layout_.units[u].range;
    RETURN_IF_ERROR(read(u, host.data()));
    if (!ShardsParameters(options_.zero_stage)) {
      RETURN_IF_ERROR(stream_.CopyToDevice(values_->as<float>() + range.offset,
                                           host.data(),
                                           range.element_count * kFloat));
      is_rounded_[u] = false;
    } else {
      for (int i = 0; i < plan_.bucket_count[u]; ++i) {
        const int b = plan_.first_bucket[u] + i;
        const FlatRange& shard = owned_.shards[b];
        RETURN_IF_ERROR(
            stream_.CopyToDevice(values_->as<float>() + owned_.offsets[b],
                                 host.data() + shard.offset - range.offset,
                                 shard.element_count * kFloat));
      }
    }
    // The host's memory is written again.
    RETURN_IF_ERROR(stream_.Synchronize());
  }
  return absl::OkStatus();
}

absl::Status ParameterStore::BeginPass(Pass pass) {
  if (!ShardsParameters(options_.zero_stage)) return absl::OkStatus();
  LS_CHECK(comm_ != nullptr);
  if (pass_ != nullptr && next_use_ != pass_->size()) {
    return absl::InternalError("parameters: a pass begins before another ends");
  }
  pass_ = &uses_[static_cast<int>(pass)];
  next_use_ = 0;
  next_gather_ = 0;
  GatherAhead();
  return absl::OkStatus();
}

absl::Status ParameterStore::TakePart(Pass pass, GradientSink& sink) {
  for (const UnitCall& call : CallsOf(pass, layout_, options_.tied_head)) {
    switch (call.kind) {
      case UnitCall::kAcquire:
        RETURN_IF_ERROR(Acquire(call.unit).status());
        break;
      case UnitCall::kRelease:
        RETURN_IF_ERROR(Release(call.unit));
        break;
      case UnitCall::kDone:
        RETURN_IF_ERROR(sink.UnitDone(call.unit));
        break;
    }
  }
  return absl::OkStatus();
}

void ParameterStore::GatherAhead() {
  for (; next_gather_ < pass_->size(); ++next_gather_) {
    const int unit = (*pass_)[next_gather_];
    Slot& slot = slots_[SlotOfUnit(layout_, unit)];
    if (slot.unit != unit) {
      if (slot.use_count > 0) return;
      slot.unit = unit;
      slot.is_rounded = false;
      slot.gather = PostGather(unit, slot.values->as<float>(), *slot.released);
    }
    ++slot.use_count;
  }
}

int64_t ParameterStore::PostGather(int unit, float* to, kernels::Event& ready) {
  return comm_->Post(
      [this, unit, to, &ready](Communicator& communicator) -> absl::Status {
        RETURN_IF_ERROR(ready.Synchronize());
        const int64_t before = communicator.sent_bytes();
        const int64_t unit_offset = layout_.units[unit].range.offset;
        for (int i = 0; i < plan_.bucket_count[unit]; ++i) {
          const int b = plan_.first_bucket[unit] + i;
          const FlatRange& shard = owned_.shards[b];
          if (ShardsParameters(options_.zero_stage)) {
            std::memcpy(to + shard.offset - unit_offset,
                        values_->as<float>() + owned_.offsets[b],
                        shard.element_count * kFloat);
          }
          const FlatRange& bucket = plan_.buckets[b].range;
          RETURN_IF_ERROR(communicator.AllGather(
              to + bucket.offset - unit_offset, bucket.element_count, kFloat));
        }
        sent_bytes_ += communicator.sent_bytes() - before;
        return absl::OkStatus();
      });
}

absl::Status ParameterStore::WaitFor(int64_t task) {
  if (task == 0) return absl::OkStatus();
  const Instant since = clock_.Now();
  const absl::Status status = comm_->WaitFor(task);
  waited_ += clock_.Now() - since;
  return status;
}

absl::Status ParameterStore::Round(int unit, const float* from, Bfloat16* to) {
  const int64_t n = layout_.units[unit].range.element_count;
  return kernels::RoundToBfloat16(stream_, from, n, 1, n, to);
}

absl::StatusOr<ParameterSource::Values> ParameterStore::Acquire(int unit) {
  if (!ShardsParameters(options_.zero_stage)) {
    RETURN_IF_ERROR(WaitFor(gathers_[unit]));
    const int64_t offset = layout_.units[unit].range.offset;
    Values values{.values = values_->as<float>() + offset};
    if (rounds()) {
      Bfloat16* const rounded = rounded_->as<Bfloat16>() + offset;
      if (!is_rounded_[unit]) {
        RETURN_IF_ERROR(Round(unit, values.values, rounded));
      }
      is_rounded_[unit] = true;
      values.rounded = rounded;
    }
    return values;
  }
  if (pass_ == nullptr || next_use_ >= next_gather_ ||
      (*pass_)[next_use_] != unit) {
    return absl::InternalError(
        absl::StrCat("parameters: unit ", unit, " is acquired out of order"));
  }
  ++next_use_;
  Slot& slot = slots_[SlotOfUnit(layout_, unit)];
  LS_CHECK(slot.unit == unit);
  RETURN_IF_ERROR(WaitFor(slot.gather));
  Values values{.values = slot.values->as<float>()};
  if (rounds()) {
    if (!slot.is_rounded) {
      RETURN_IF_ERROR(Round(unit, values.values, slot.rounded->as<Bfloat16>()));
    }
    slot.is_rounded = true;
    values.rounded = slot.rounded->as<Bfloat16>();
  }
  return values;
}

absl::Status ParameterStore::Release(int unit) {
  if (!ShardsParameters(options_.zero_stage)) return absl::OkStatus();
  Slot& slot = slots_[SlotOfUnit(layout_, unit)];
  LS_CHECK(slot.unit == unit && slot.use_count > 0);
  RETURN_IF_ERROR(stream_.Record(*slot.released));
  --slot.use_count;
  GatherAhead();
  return absl::OkStatus();
}

StateArray<float> ParameterStore::values() {
  return {.data = values_->as<float>(),
          .is_owned = ShardsParameters(options_.zero_stage)};
}

absl::Status ParameterStore::UnitUpdated(int unit) {
  if (ShardsParameters(options_.zero_stage)) {
    Slot& slot = slots_[SlotOfUnit(layout_, unit)];
    if (slot.unit == unit) slot.unit = -1;
    return absl::OkStatus();
  }
  is_rounded_[unit] = false;
  if (!ShardsOptimizer(options_.zero_stage)) return absl::OkStatus();
  LS_CHECK(comm_ != nullptr);
  RETURN_IF_ERROR(stream_.Record(*updated_[unit]));
  gathers_[unit] =
      PostGather(unit, values_->as<float>() + layout_.units[unit].range.offset,
                 *updated_[unit]);
  return absl::OkStatus();
}

}  // namespace lockstep
