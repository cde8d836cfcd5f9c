#include "worker/model/rotary_table.h"

#include <cmath>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

ModelConfig Config(double base, int64_t head_width) {
  ModelConfig c;
  c.family = ModelFamily::kLlama;
  c.rotary_base = base;
  c.head_width = head_width;
  return c;
}

TEST(RotaryTableTest, FrequenciesFallFromOneToNearTheBase) {
  const std::vector<double> f = RotaryFrequencies(Config(10000, 128));
  ASSERT_EQ(f.size(), 64u);
  for (size_t j = 0; j < f.size(); ++j) {
    EXPECT_NEAR(f[j] / std::pow(10000, -static_cast<double>(j) / 64), 1, 1e-14);
  }
}

// With Llama 3.1's own settings: 8, 1, 4, 8192 at a base of 500,000.
TEST(RotaryTableTest, SlowTurnsAreStretchedAndFastOnesAreNot) {
  ModelConfig c = Config(500000, 128);
  const std::vector<double> plain = RotaryFrequencies(c);
  c.rotary_scaling = RotaryScaling();
  const std::vector<double> scaled = RotaryFrequencies(c);
  const double pi = std::acos(-1.0);
  int fast = 0, slow = 0, between = 0;
  for (size_t j = 0; j < plain.size(); ++j) {
    const double wave = 2 * pi / plain[j];
    if (wave < 2048) {
      EXPECT_EQ(scaled[j], plain[j]);
      ++fast;
    } else if (wave > 8192) {
      EXPECT_EQ(scaled[j], plain[j] / 8);
      ++slow;
    } else {
      EXPECT_GT(scaled[j], plain[j] / 8);
      EXPECT_LT(scaled[j], plain[j]);
      const double s = (8192 / wave - 1) / 3;
      EXPECT_NEAR(scaled[j] / (plain[j] * ((1 - s) / 8 + s)), 1, 1e-14);
      ++between;
    }
  }
  EXPECT_GT(fast, 20);
  EXPECT_GT(slow, 20);
  EXPECT_GT(between, 3);
}

TEST(RotaryTableTest, TableIsCosineAndSineOfThePositionsAngle) {
  const ModelConfig c = Config(10000, 6);
  const int64_t positions = 5000;
  const RotaryTable table = MakeRotaryTable(c, positions);
  const std::vector<double> f = RotaryFrequencies(c);
  ASSERT_EQ(table.cosine.size(), 3u * positions);
  for (int64_t t = 0; t < positions; ++t) {
    for (int64_t j = 0; j < 3; ++j) {
      const double angle = static_cast<double>(t) * f[j];
      ASSERT_NEAR(table.cosine[t * 3 + j], std::cos(angle), 6e-8);
      ASSERT_NEAR(table.sine[t * 3 + j], std::sin(angle), 6e-8);
    }
  }
}

}  // namespace
}  // namespace lockstep
