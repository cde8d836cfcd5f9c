#include "worker/parallel/fake_training.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/check.h"
#include "common/clock.h"
#include "common/philox.h"
#include "common/status.h"
#include "common/unit_calls.h"

namespace lockstep {
namespace {

constexpr int64_t kTokensOfMicroBatch = 96;

template <typename T>
T Must(absl::StatusOr<T> value) {
  LS_CHECK(value.ok());
  return *std::move(value);
}

}  // namespace

Layout FakeLayout() {
  ModelConfig c;
  c.vocabulary = 61;
  c.position_max = 13;
  c.width = 20;
  c.layer_count = 3;
  c.SetPlainHeads(2);
  c.inner_width = 33;
  return MakeLayout(c);
}

std::vector<float> FakeGradient(const Layout& layout, int64_t step,
                                int64_t micro_batch, int tensor,
                                int contribution) {
  const int64_t n = layout.tensors[tensor].element_count;
  const double scale =
      std::pow(10, tensor % 7 - 4) * (1 + 0.3 * static_cast<double>(step));
  std::vector<float> gradient(n);
  for (int64_t i = 0; i < n; ++i) {
    const PhiloxBlock b =
        Philox4x32({static_cast<uint32_t>(i), static_cast<uint32_t>(tensor),
                    static_cast<uint32_t>(micro_batch * 2 + contribution),
                    static_cast<uint32_t>(step)},
                   {11, 12});
    gradient[i] = static_cast<float>(scale * (2 * UniformFrom(b[0]) - 1));
  }
  return gradient;
}

LossSum FakeLoss(int64_t step, int64_t micro_batch) {
  const PhiloxBlock b = Philox4x32(
      {static_cast<uint32_t>(micro_batch), static_cast<uint32_t>(step), 0, 0},
      {13, 14});
  return {.nats = kTokensOfMicroBatch * (4 + UniformFrom(b[0])),
          .token_count = kTokensOfMicroBatch - micro_batch % 3};
}

float FakeParameter(int64_t i) {
  return static_cast<float>(std::sin(0.1 * static_cast<double>(i)));
}

int64_t FakeOptions::micro_batch_count() const {
  int64_t count = 0;
  for (const auto& mine : split) count += static_cast<int64_t>(mine.size());
  return count;
}

int64_t FakeOptions::round_count() const {
  size_t count = 0;
  for (const auto& mine : split) count = std::max(count, mine.size());
  return static_cast<int64_t>(count);
}

FakeRank::FakeRank(const FakeOptions& options,
                   std::unique_ptr<Communicator> communicator)
    : options_(options),
      layout_(FakeLayout()),
      scale_({.micro_batch_count = options.micro_batch_count(),
              .nominal_token_count =
                  options.micro_batch_count() * kTokensOfMicroBatch}),
      device_(Must(kernels::CreateCpuDevice(options.thread_count))),
      stream_(Must(device_->CreateStream())),
      comm_(std::make_unique<CommThread>(std::move(communicator))),
      reducer_(
          Must(GradientReducer::Create(layout_,
                                       {.bucket_bytes = options.bucket_bytes,
                                        .overlap = options.overlap,
                                        .zero_stage = options.zero_stage,
                                        .round_count = options.round_count(),
                                        .scale = scale_,
                                        .inputs = {"fake", "fake", "fake"}},
                                       *stream_, *comm_, RealClock()))),
      optimizer_(Must(
          Optimizer::Create(layout_,
                            ShardsOptimizer(options.zero_stage)
                                ? reducer_->owned()
                                : ShardsOf(layout_, reducer_->plan(), 0, 1),
                            options.optimizer, *stream_))),
      parameters_(
          Must(ParameterStore::Create(layout_,
                                      {.zero_stage = options.zero_stage,
                                       .rank = comm_->rank(),
                                       .world = comm_->world(),
                                       .bucket_bytes = options.bucket_bytes,
                                       .tied_head = true},
                                      *stream_, RealClock()))),
      units_(layout_.tensors.size()) {
  parameters_->Join(*comm_);
  const absl::Status loaded =
      parameters_->Load([this](int unit, float* values) {
        const FlatRange& range = layout_.units[unit].range;
        for (int64_t i = 0; i < range.element_count; ++i) {
          values[i] = FakeParameter(range.offset + i);
        }
        return absl::OkStatus();
      });
  LS_CHECK(loaded.ok());
}

absl::Status FakeRank::Contribute(int64_t step, int64_t micro_batch, int tensor,
                                  int contribution) {
  std::vector<float> gradient =
      FakeGradient(layout_, step, micro_batch, tensor, contribution);
  if (tamper) tamper(step, micro_batch, tensor, contribution, gradient);
  RETURN_IF_ERROR(reducer_->Contribute(tensor, gradient.data()));
  return stream_->Synchronize();
}

absl::Status FakeRank::RunMicroBatch(int64_t step, int64_t micro_batch) {
  RETURN_IF_ERROR(parameters_->BeginPass(Pass::kMicroBatch));
  for (const UnitCall& call : CallsOfMicroBatch(layout_, /*tied_head=*/true)) {
    const Unit& unit = layout_.units[call.unit];
    if (call.kind == UnitCall::kAcquire) {
      RETURN_IF_ERROR(parameters_->Acquire(call.unit).status());
      continue;
    }
    if (call.kind == UnitCall::kRelease) {
      RETURN_IF_ERROR(parameters_->Release(call.unit));
      continue;
    }
    // The head's use of the tied embedding.
    if (unit.name == "head") {
      RETURN_IF_ERROR(Contribute(step, micro_batch, 0, 1));
    }
    for (int t = unit.end_tensor - 1; t >= unit.first_tensor; --t) {
      RETURN_IF_ERROR(Contribute(step, micro_batch, t, 0));
    }
    RETURN_IF_ERROR(reducer_->UnitDone(call.unit));
    if (after_unit) after_unit(micro_batch, call.unit);
  }
  LossSum loss = FakeLoss(step, micro_batch);
  if (tamper_loss) tamper_loss(step, micro_batch, loss);
  return reducer_->EndMicroBatch(loss);
}

namespace {

// Passes on which units are done.
class DoneSink final : public GradientSink {
 public:
  explicit DoneSink(GradientReducer& reducer) : reducer_(reducer) {}
  absl::Status Contribute(int, const float*) override {
    return absl::InternalError("a contribution without a micro-batch");
  }
  absl::Status UnitDone(int unit) override { return reducer_.UnitDone(unit); }

 private:
  GradientReducer& reducer_;
};

}  // namespace

absl::StatusOr<StepResult> FakeRank::RunStep(int64_t step, const Votes& votes) {
  const std::vector<int64_t>& mine = options_.split[comm_->rank()];
  RETURN_IF_ERROR(reducer_->BeginStep(UnitExponents(units_, scale_),
                                      static_cast<int64_t>(mine.size())));
  for (const int64_t m : mine) RETURN_IF_ERROR(RunMicroBatch(step, m));
  DoneSink sink(*reducer_);
  for (int64_t i = 0; i < reducer_->idle_round_count(); ++i) {
    RETURN_IF_ERROR(parameters_->BeginPass(Pass::kMicroBatch));
    RETURN_IF_ERROR(parameters_->TakePart(Pass::kMicroBatch, sink));
    RETURN_IF_ERROR(reducer_->EndMicroBatch({}));
  }
  return reducer_->Commit(votes);
}

absl::StatusOr<StepResult> FakeRank::Train(int64_t step) {
  ASSIGN_OR_RETURN(StepResult result, RunStep(step));
  RETURN_IF_ERROR(optimizer_->Apply(
      result, 0.01 / (1.0 + step), reducer_->sums(), parameters_->values(),
      [this](int unit) { return parameters_->UnitUpdated(unit); }));
  RETURN_IF_ERROR(stream_->Synchronize());
  for (size_t t = 0; t < units_.size(); ++t) {
    if (result.skipped()) {
      ResetUnit(units_[t]);
    } else {
      AdvanceUnit(units_[t], result.tensors[t].exponent,
                  result.tensors[t].max_sum);
    }
  }
  return result;
}

std::vector<int64_t> FakeRank::sums() {
  std::vector<int64_t> flat(layout_.element_count);
  const OwnedShards owned = ShardsOptimizer(options_.zero_stage)
                                ? reducer_->owned()
                                : ShardsOf(layout_, reducer_->plan(), 0, 1);
  for (const TensorPiece& piece : owned.pieces) {
    std::copy_n(reducer_->sums().At(piece), piece.range.element_count,
                flat.begin() + piece.range.offset);
  }
  return flat;
}

std::vector<float> FakeRank::parameters() {
  std::vector<float> flat(layout_.element_count);
  LS_CHECK(parameters_->BeginPass(Pass::kWeights).ok());
  for (int u = 0; u < static_cast<int>(layout_.units.size()); ++u) {
    const FlatRange& range = layout_.units[u].range;
    const auto unit = parameters_->Acquire(u);
    LS_CHECK(unit.ok());
    std::copy_n(unit->values, range.element_count, flat.begin() + range.offset);
    LS_CHECK(parameters_->Release(u).ok());
  }
  return flat;
}

void ForEachFakeRank(const FakeOptions& options,
                     const std::function<void(int rank, FakeRank&)>& body) {
  auto group = MakeTestGroup(options.kind, options.world());
  ForEachRank(options.world(), [&](int rank) {
    FakeRank fake(options, std::move(group[rank]));
    body(rank, fake);
  });
}

}  // namespace lockstep
