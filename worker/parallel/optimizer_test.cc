#include "worker/parallel/optimizer.h"

#include <cmath>
#include <numeric>
#include <vector>

#include "common/philox.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

Layout SmallLayout() {
  ModelConfig c;
  c.vocabulary = 11;
  c.position_max = 3;
  c.width = 6;
  c.layer_count = 1;
  c.SetPlainHeads(1);
  c.inner_width = 7;
  return MakeLayout(c);
}

class OptimizerTest : public ::testing::Test {
 protected:
  OptimizerTest()
      : layout_(SmallLayout()),
        device_(*kernels::CreateCpuDevice(1)),
        stream_(*device_->CreateStream()),
        parameters_(layout_.element_count),
        sums_(layout_.element_count) {
    for (int64_t i = 0; i < layout_.element_count; ++i) {
      parameters_[i] = static_cast<float>(std::cos(0.7 * i));
    }
  }

  OwnedShards Everything() const {
    return ShardsOf(layout_, MakeReductionPlan(layout_, 64), 0, 1);
  }
  StateArray<const int64_t> Sums() const { return {.data = sums_.data()}; }
  static StateArray<float> Flat(std::vector<float>& values) {
    return {.data = values.data()};
  }

  std::unique_ptr<Optimizer> Make(const OptimizerOptions& options) {
    return *Optimizer::Create(layout_, Everything(), options, *stream_);
  }

  // Sums of step `step`, and what the reducer would say of them.
  StepResult FakeStep(uint32_t step) {
    StepResult result;
    result.loss.token_count = 100 + step;
    double squares = 0;
    for (size_t t = 0; t < layout_.tensors.size(); ++t) {
      const Tensor& tensor = layout_.tensors[t];
      const int exponent = -20 - static_cast<int>(t);
      result.tensors.push_back({.exponent = exponent});
      for (int64_t i = 0; i < tensor.element_count; ++i) {
        const auto bits = Philox4x32(
            {static_cast<uint32_t>(i), static_cast<uint32_t>(t), step, 0},
            {1, 1});
        const int64_t s = static_cast<int32_t>(bits[0]);
        sums_[tensor.offset + i] = s;
        squares += std::pow(std::ldexp(static_cast<double>(s), exponent), 2);
      }
    }
    result.gradient_norm =
        std::sqrt(squares) / static_cast<double>(result.loss.token_count);
    return result;
  }

  const Layout layout_;
  std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<kernels::Stream> stream_;
  std::vector<float> parameters_;
  std::vector<int64_t> sums_;
};

// The reference in double, as reference/generate.py has it.
TEST_F(OptimizerTest, FollowsAdamWWithDecayOnMatricesAndClipping) {
  for (const double clip_norm : {0.0, 0.5, 1e9}) {
    const OptimizerOptions options = {.beta1 = 0.9,
                                      .beta2 = 0.95,
                                      .epsilon = 1e-6,
                                      .weight_decay = 0.1,
                                      .clip_norm = clip_norm};
    const auto optimizer = Make(options);
    std::vector<float> got = parameters_;
    std::vector<double> p(got.begin(), got.end());
    std::vector<double> m(p.size()), v(p.size());

    for (uint32_t step = 0; step < 8; ++step) {
      const StepResult result = FakeStep(step);
      const double rate = 3e-3 / (step + 1);
      ASSERT_TRUE(optimizer->Apply(result, rate, Sums(), Flat(got)).ok());
      ASSERT_TRUE(stream_->Synchronize().ok());
      const double scale =
          clip_norm > 0
              ? std::min(1.0, clip_norm / (result.gradient_norm + 1e-6))
              : 1;
      for (size_t t = 0; t < layout_.tensors.size(); ++t) {
        const Tensor& tensor = layout_.tensors[t];
        const double decay = tensor.shape.size() >= 2 ? 0.1 : 0;
        for (int64_t i = tensor.offset;
             i < tensor.offset + tensor.element_count; ++i) {
          const double g = std::ldexp(static_cast<double>(sums_[i]),
                                      result.tensors[t].exponent) /
                           result.loss.token_count * scale;
          m[i] = 0.9 * m[i] + 0.1 * g;
          v[i] = 0.95 * v[i] + 0.05 * g * g;
          const double mh = m[i] / (1 - std::pow(0.9, step + 1));
          const double vh = v[i] / (1 - std::pow(0.95, step + 1));
          p[i] -= rate * (mh / (std::sqrt(vh) + 1e-6) + decay * p[i]);
        }
      }
    }
    EXPECT_EQ(optimizer->update_count(), 8);
    // Eight float32 updates of parameters up to 1: 8 roundings of 2^-25 each,
    // and updates (below 3e-3) right to some 2^-20.
    for (const Tensor& tensor : layout_.tensors) {
      for (int64_t i = tensor.offset; i < tensor.offset + tensor.element_count;
           ++i) {
        ASSERT_NEAR(got[i], p[i], 8 * 0x1p-24) << tensor.name;
      }
    }
  }
}

TEST_F(OptimizerTest, PaddingStaysAsItIs) {
  const auto optimizer = Make({});
  std::vector<bool> is_padding(layout_.element_count, true);
  for (const Tensor& t : layout_.tensors) {
    for (int64_t i = 0; i < t.element_count; ++i) {
      is_padding[t.offset + i] = false;
    }
  }
  const std::vector<float> before = parameters_;
  const StepResult result = FakeStep(0);
  ASSERT_TRUE(optimizer->Apply(result, 0.1, Sums(), Flat(parameters_)).ok());
  for (int64_t i = 0; i < layout_.element_count; ++i) {
    EXPECT_EQ(parameters_[i] == before[i], is_padding[i]) << i;
  }
}

TEST_F(OptimizerTest, ASkippedStepChangesNothing) {
  const auto optimizer = Make({});
  ASSERT_TRUE(
      optimizer->Apply(FakeStep(0), 0.1, Sums(), Flat(parameters_)).ok());
  const auto n = layout_.element_count;
  const std::vector<float> parameters = parameters_;
  const std::vector<float> moment1(optimizer->moment1(),
                                   optimizer->moment1() + n);
  const std::vector<float> moment2(optimizer->moment2(),
                                   optimizer->moment2() + n);

  for (const bool gradient : {true, false}) {
    StepResult skipped = FakeStep(1);
    (gradient ? skipped.gradient_overflow : skipped.loss_not_finite) = true;
    ASSERT_TRUE(optimizer->Apply(skipped, 0.1, Sums(), Flat(parameters_)).ok());
  }

  EXPECT_EQ(parameters_, parameters);
  EXPECT_EQ(std::vector<float>(optimizer->moment1(), optimizer->moment1() + n),
            moment1);
  EXPECT_EQ(std::vector<float>(optimizer->moment2(), optimizer->moment2() + n),
            moment2);
  EXPECT_EQ(optimizer->update_count(), 1);
}

// The state is moments and count: restored elsewhere, training goes on with the
// same bits.
TEST_F(OptimizerTest, RestoredStateGoesOnWithTheSameBits) {
  const auto first = Make({});
  for (uint32_t step = 0; step < 3; ++step) {
    const StepResult result = FakeStep(step);
    ASSERT_TRUE(first->Apply(result, 0.01, Sums(), Flat(parameters_)).ok());
  }
  const auto second = Make({});
  std::copy_n(first->moment1(), layout_.element_count, second->moment1());
  std::copy_n(first->moment2(), layout_.element_count, second->moment2());
  second->set_update_count(first->update_count());
  std::vector<float> other = parameters_;

  const StepResult result = FakeStep(3);
  ASSERT_TRUE(first->Apply(result, 0.01, Sums(), Flat(parameters_)).ok());
  ASSERT_TRUE(second->Apply(result, 0.01, Sums(), Flat(other)).ok());

  EXPECT_EQ(other, parameters_);
}

// What a rank owns is updated with the bits that all of it would get, whichever
// of its arrays are whole, unit by unit.
TEST_F(OptimizerTest, ShardsAreUpdatedAsTheWholeWouldBe) {
  const StepResult result = FakeStep(0);
  std::vector<float> whole = parameters_;
  ASSERT_TRUE(Make({})->Apply(result, 0.01, Sums(), Flat(whole)).ok());

  const ReductionPlan plan = MakeReductionPlan(layout_, 100);
  for (const bool sums_owned : {false, true}) {
    for (const bool parameters_owned : {false, true}) {
      for (int rank = 0; rank < 3; ++rank) {
        const OwnedShards owned = ShardsOf(layout_, plan, rank, 3);
        const auto optimizer = *Optimizer::Create(layout_, owned, {}, *stream_);
        std::vector<int64_t> owned_sums(owned.element_count);
        std::vector<float> owned_values(owned.element_count);
        for (const TensorPiece& p : owned.pieces) {
          std::copy_n(&sums_[p.range.offset], p.range.element_count,
                      &owned_sums[p.owned_offset]);
          std::copy_n(&parameters_[p.range.offset], p.range.element_count,
                      &owned_values[p.owned_offset]);
        }
        std::vector<float> flat = parameters_;
        const StateArray<const int64_t> sums = {
            .data = sums_owned ? owned_sums.data() : sums_.data(),
            .is_owned = sums_owned};
        const StateArray<float> values = {
            .data = parameters_owned ? owned_values.data() : flat.data(),
            .is_owned = parameters_owned};
        std::vector<int> units;

        ASSERT_TRUE(optimizer
                        ->Apply(result, 0.01, sums, values,
                                [&](int unit) {
                                  units.push_back(unit);
                                  return absl::OkStatus();
                                })
                        .ok());

        for (const TensorPiece& p : owned.pieces) {
          for (int64_t i = 0; i < p.range.element_count; ++i) {
            ASSERT_EQ(values.At(p)[i], whole[p.range.offset + i]);
          }
        }
        std::vector<int> forward(layout_.units.size());
        std::iota(forward.begin(), forward.end(), 0);
        EXPECT_EQ(units, forward);
      }
    }
  }
}

TEST_F(OptimizerTest, OptionsOutOfRangeAreRefusedByName) {
  const auto message = [&](const OptimizerOptions& options) {
    const auto status =
        Optimizer::Create(layout_, Everything(), options, *stream_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(message({.beta1 = 1}), "beta1: expected 0 to below 1, got 1");
  EXPECT_EQ(message({.beta2 = -0.5}), "beta2: expected 0 to below 1, got -0.5");
  EXPECT_EQ(message({.epsilon = 0}), "epsilon: expected above 0, got 0");
  EXPECT_EQ(message({.weight_decay = -1}),
            "weight_decay: expected 0 or more, got -1");
  EXPECT_EQ(message({.clip_norm = std::nan("")}),
            "clip_norm: expected 0 (off) or more, got nan");
}

}  // namespace
}  // namespace lockstep
