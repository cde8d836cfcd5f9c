#include "worker/checkpoint/initial_weights.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

ModelConfig Config() {
  ModelConfig c;
  c.vocabulary = 1001;
  c.position_max = 129;
  c.width = 50;
  c.layer_count = 3;
  c.SetPlainHeads(5);
  c.inner_width = 203;
  c.initializer_range = 0.03;
  c.tied_head = false;
  return c;
}

std::vector<float> Weights(const ModelConfig& config, int64_t seed) {
  const Layout layout = MakeLayout(config);
  // Not zero before, so that what is left out shows.
  std::vector<float> flat(layout.element_count, 99.0f);
  for (size_t u = 0; u < layout.units.size(); ++u) {
    InitializeUnit(config, layout, seed, static_cast<int>(u),
                   &flat[layout.units[u].range.offset]);
  }
  return flat;
}

// Moments of a matrix of n elements against those of N(0, d^2): the mean has
// deviation d / sqrt(n), the variance d^2 sqrt(2 / n), the fourth moment
// (over d^4) sqrt(96 / n); five deviations each, one in a million.
TEST(InitialWeightsTest, MatricesAreNormalOfTheirDeviation) {
  const ModelConfig config = Config();
  const Layout layout = MakeLayout(config);
  const std::vector<float> flat = Weights(config, 1);
  int matrices = 0;
  for (const Tensor& t : layout.tensors) {
    if (!t.decays()) continue;
    ++matrices;
    const bool residual = t.role == TensorRole::kAttentionOutWeight ||
                          t.role == TensorRole::kOuterWeight;
    const double d = residual ? 0.03 / std::sqrt(6.0) : 0.03;
    const auto n = static_cast<double>(t.element_count);
    double mean = 0, variance = 0, fourth = 0;
    for (int64_t i = 0; i < t.element_count; ++i) {
      const double z = flat[t.offset + i] / d;
      mean += z / n;
      variance += z * z / n;
      fourth += z * z * z * z / n;
    }
    EXPECT_NEAR(mean, 0, 5 / std::sqrt(n)) << t.name;
    EXPECT_NEAR(variance, 1, 5 * std::sqrt(2 / n)) << t.name;
    EXPECT_NEAR(fourth, 3, 5 * std::sqrt(96 / n)) << t.name;
  }
  EXPECT_EQ(matrices, 3 + 3 * 4);
}

TEST(InitialWeightsTest, NormsAreOneAndBiasesAndPaddingZero) {
  const ModelConfig config = Config();
  const Layout layout = MakeLayout(config);
  std::vector<float> flat = Weights(config, 1);
  for (const Tensor& t : layout.tensors) {
    const bool norm_weight = t.role == TensorRole::kNorm1Weight ||
                             t.role == TensorRole::kNorm2Weight ||
                             t.role == TensorRole::kFinalNormWeight;
    for (int64_t i = 0; i < t.element_count; ++i) {
      float& value = flat[t.offset + i];
      if (!t.decays()) {
        EXPECT_EQ(value, norm_weight ? 1.0f : 0.0f) << t.name;
      }
      value = 0;
    }
  }
  for (float padding : flat) EXPECT_EQ(padding, 0.0f);
}

TEST(InitialWeightsTest, AnElementDependsOnSeedTensorAndPlaceOnly) {
  const ModelConfig config = Config();
  const Layout layout = MakeLayout(config);
  const std::vector<float> flat = Weights(config, 1);
  EXPECT_EQ(Weights(config, 1), flat);

  // A smaller vocabulary moves everything behind, but changes no value.
  ModelConfig smaller = config;
  smaller.vocabulary = 998;
  const Layout smaller_layout = MakeLayout(smaller);
  const std::vector<float> smaller_flat = Weights(smaller, 1);
  for (size_t i = 0; i < layout.tensors.size(); ++i) {
    const Tensor& t = layout.tensors[i];
    const Tensor& s = smaller_layout.tensors[i];
    for (int64_t k = 0; k < s.element_count; ++k) {
      ASSERT_EQ(flat[t.offset + k], smaller_flat[s.offset + k]) << t.name;
    }
  }

  // Other seeds and other tensors share next to nothing.
  const std::vector<float> other = Weights(config, 2);
  const Tensor& a = layout.tensors[layout.Find(TensorRole::kInnerWeight, 0)];
  const Tensor& b = layout.tensors[layout.Find(TensorRole::kInnerWeight, 1)];
  int equal_seeds = 0, equal_tensors = 0;
  for (int64_t k = 0; k < a.element_count; ++k) {
    equal_seeds += flat[a.offset + k] == other[a.offset + k];
    equal_tensors += flat[a.offset + k] == flat[b.offset + k];
  }
  EXPECT_LT(equal_seeds, 3);
  EXPECT_LT(equal_tensors, 3);
}

// FNV-1a over all bits, pinned: fresh weights are part of a job's bits.
TEST(InitialWeightsTest, BitsAreTheSameEverywhere) {
  uint64_t hash = 0xcbf29ce484222325;
  for (float value : Weights(Config(), 7)) {
    hash = (hash ^ std::bit_cast<uint32_t>(value)) * 0x100000001b3;
  }
  EXPECT_EQ(hash, 0xcdda007d2df19ceau);
}

}  // namespace
}  // namespace lockstep
