#include "worker/model/sampler.h"

#include <cmath>
#include <limits>
#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/checkpoint/hugging_face.h"
#include "worker/checkpoint/initial_weights.h"
#include "worker/data/test_files.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

TEST(ChooseTokenTest, FollowsTheModelsDistribution) {
  const std::vector<float> logits = {0.0f, 1.0f, -1.0f, 2.0f};
  double sum = 0;
  for (const float l : logits) sum += std::exp(l);
  constexpr int kDraws = 20000;
  std::map<int32_t, int> counts;

  for (int i = 0; i < kDraws; ++i) ++counts[*ChooseToken(logits, i, {})];

  for (int32_t token = 0; token < 4; ++token) {
    const double p = std::exp(logits[token]) / sum;
    // Five standard deviations; the draws are fixed by the seed.
    EXPECT_NEAR(counts[token], p * kDraws, 5 * std::sqrt(p * kDraws)) << token;
  }
}

TEST(ChooseTokenTest, TemperatureZeroAndTopKLeaveOnlyTheLikeliest) {
  const std::vector<float> logits = {1.0f, 3.0f, 3.0f, 2.0f};
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(*ChooseToken(logits, i, {.temperature = 0}), 1);
    EXPECT_EQ(*ChooseToken(logits, i, {.top_k = 1}), 1);
    const int32_t token = *ChooseToken(logits, i, {.top_k = 3});
    EXPECT_NE(token, 0);
  }
}

TEST(ChooseTokenTest, BrokenLogitsAreAnError) {
  const std::vector<float> logits = {0.0f,
                                     std::numeric_limits<float>::quiet_NaN()};
  EXPECT_EQ(ChooseToken(logits, 0, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

class SampleFromFolderTest : public testing::Test {
 protected:
  SampleFromFolderTest() {
    ModelConfig config;
    config.vocabulary = 50;
    config.position_max = 8;
    config.width = 16;
    config.layer_count = 2;
    config.SetPlainHeads(2);
    config.inner_width = 32;
    config.initializer_range = 0.5;
    const Layout layout = MakeLayout(config);
    auto writer = HuggingFaceWriter::Create(
        {.temporary_folder = folder_.Path("model"), .config = config});
    EXPECT_TRUE(writer.ok()) << writer.status();
    for (size_t u = 0; u < layout.units.size(); ++u) {
      const int unit = static_cast<int>(u);
      std::vector<float> values(layout.units[u].range.element_count);
      InitializeUnit(config, layout, 1, unit, values.data());
      EXPECT_TRUE((*writer)->WriteUnit(unit, values.data()).ok());
    }
    EXPECT_TRUE((*writer)->Finish().ok());
  }

  std::vector<int32_t> Sample(const std::vector<int32_t>& prompt,
                              const SamplerOptions& options) {
    std::vector<int32_t> tokens;
    const absl::Status status =
        SampleFromFolder(folder_.Path("model"), prompt, options, 1,
                         [&](int32_t token) { tokens.push_back(token); });
    EXPECT_TRUE(status.ok()) << status;
    return tokens;
  }

  TestFolder folder_;
};

TEST_F(SampleFromFolderTest, IsAFunctionOfSeedAndPrompt) {
  const auto a = Sample({1, 2}, {.token_count = 20, .seed = 5});

  EXPECT_EQ(a.size(), 20u);
  EXPECT_EQ(Sample({1, 2}, {.token_count = 20, .seed = 5}), a);
  EXPECT_NE(Sample({1, 2}, {.token_count = 20, .seed = 6}), a);
  EXPECT_NE(Sample({2, 1}, {.token_count = 20, .seed = 5}), a);
}

TEST_F(SampleFromFolderTest, SeesTheLastPositionsOfALongText) {
  // With the same last 8 tokens the next one is the same.
  const SamplerOptions greedy = {.token_count = 1, .temperature = 0};
  EXPECT_EQ(Sample({40, 41, 1, 2, 3, 4, 5, 6, 7, 8}, greedy),
            Sample({1, 2, 3, 4, 5, 6, 7, 8}, greedy));
}

TEST_F(SampleFromFolderTest, ATokenOutsideTheVocabularyIsNamed) {
  const absl::Status status =
      SampleFromFolder(folder_.Path("model"), {1, 50}, {}, 1, [](int32_t) {});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("token 50"));
}

}  // namespace
}  // namespace lockstep
