#include "kernels/embedding.h"

#include "kernels/embedding_reference.h"
#include "kernels/kernel_testing.h"

namespace lockstep::kernels {
namespace {

class EmbeddingTest : public KernelTest {};
LS_INSTANTIATE_KERNEL_TEST(EmbeddingTest);

constexpr int64_t kVocabulary = 11;

std::vector<int32_t> RandomTokens(int64_t n) {
  std::vector<int32_t> tokens;
  for (const float f : RandomFloats(9, n, 100)) {
    tokens.push_back(std::abs(static_cast<int32_t>(f)) % kVocabulary);
  }
  return tokens;
}

TEST_P(EmbeddingTest, ForwardAddsTokenAndPosition) {
  for (const int64_t rows : {0, 1, 7}) {
    for (const int64_t length : {1, 37}) {
      for (const int64_t width : {1, 17, 100}) {
        const std::vector<int32_t> tokens = RandomTokens(rows * length);
        const std::vector<float> table = RandomFloats(1, kVocabulary * width);
        const std::vector<float> positions = RandomFloats(2, length * width);
        for (const int threads : {1, 2, 3}) {
          Unaligned<int32_t> in(tokens, threads);
          Unaligned<float> t(table, threads), p(positions, threads);
          Unaligned<float> out(std::vector<float>(rows * length * width),
                               threads);

          ASSERT_TRUE(EmbeddingForward(StreamOf(threads), in.data(), t.data(),
                                       p.data(), rows, length, width,
                                       out.data())
                          .ok());

          // One rounding.
          ASSERT_TRUE(AllNear(
              out.values(),
              EmbeddingForwardReference(tokens, ToDouble(table),
                                        ToDouble(positions), length, width),
              0, 6e-8));
        }
      }
    }
  }
}

TEST_P(EmbeddingTest, WithoutPositionsItIsTheTokensRow) {
  const int64_t rows = 3, length = 37, width = 17;
  const std::vector<int32_t> tokens = RandomTokens(rows * length);
  const std::vector<float> table = RandomFloats(1, kVocabulary * width);
  std::vector<float> out(rows * length * width), expected;
  for (const int32_t token : tokens) {
    expected.insert(expected.end(), table.begin() + token * width,
                    table.begin() + (token + 1) * width);
  }
  ASSERT_TRUE(EmbeddingForward(StreamOf(2), tokens.data(), table.data(),
                               nullptr, rows, length, width, out.data())
                  .ok());
  EXPECT_TRUE(BitEqual(out, expected));
}

TEST_P(EmbeddingTest, BackwardAddsUpWhereTokensAndPositionsOccur) {
  const int64_t position_max = 40;
  for (const int64_t rows : {0, 1, 7}) {
    for (const int64_t length : {1, 37}) {
      for (const int64_t width : {1, 17, 200}) {
        const std::vector<int32_t> tokens = RandomTokens(rows * length);
        const std::vector<float> g = RandomFloats(1, rows * length * width);
        const EmbeddingGradientReference expected = EmbeddingBackwardReference(
            tokens, ToDouble(g), length, kVocabulary, position_max, width);
        std::vector<float> one_table, one_positions;
        for (const int threads : {1, 2, 3}) {
          Unaligned<int32_t> in(tokens, threads);
          Unaligned<float> gradient(g, threads);
          Unaligned<float> table(std::vector<float>(kVocabulary * width, 9),
                                 threads);
          Unaligned<float> positions(
              std::vector<float>(position_max * width, 9), threads);

          ASSERT_TRUE(TokenEmbeddingBackward(StreamOf(threads), in.data(),
                                             gradient.data(), rows * length,
                                             kVocabulary, width, table.data())
                          .ok());
          ASSERT_TRUE(PositionEmbeddingBackward(
                          StreamOf(threads), gradient.data(), rows, length,
                          position_max, width, positions.data())
                          .ok());

          // Up to about 40 terms a token.
          ASSERT_TRUE(AllNear(table.values(), expected.token_table, 2e-5, 0));
          ASSERT_TRUE(
              AllNear(positions.values(), expected.position_table, 2e-6, 0));
          if (threads == 1) {
            one_table = table.values();
            one_positions = positions.values();
          }
          ASSERT_TRUE(BitEqual(table.values(), one_table));
          ASSERT_TRUE(BitEqual(positions.values(), one_positions));
        }
      }
    }
  }
}

TEST_P(EmbeddingTest, TokensAreAddedInOrder) {
  // 1e8 + 1 is 1e8 in float32: only this order gives 1.
  const std::vector<int32_t> tokens = {3, 3, 3};
  const std::vector<float> g = {1e8f, -1e8f, 1};
  std::vector<float> table(kVocabulary);

  ASSERT_TRUE(TokenEmbeddingBackward(StreamOf(2), tokens.data(), g.data(), 3,
                                     kVocabulary, 1, table.data())
                  .ok());

  EXPECT_EQ(table[3], 1);
}

TEST_P(EmbeddingTest, WrongArgumentsAreRefused) {
  Stream& s = StreamOf(1);
  float f = 0;
  int32_t token = 0;
  EXPECT_EQ(EmbeddingForward(s, &token, nullptr, &f, 1, 1, 1, &f).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(TokenEmbeddingBackward(s, nullptr, &f, 1, 1, 1, &f).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(PositionEmbeddingBackward(s, &f, 1, 2, 1, 1, &f).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lockstep::kernels
