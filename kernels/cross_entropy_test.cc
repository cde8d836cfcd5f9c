#include "kernels/cross_entropy.h"

#include <limits>

#include "kernels/cross_entropy_reference.h"
#include "kernels/kernel_testing.h"

namespace lockstep::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class CrossEntropyTest : public KernelTest {};
LS_INSTANTIATE_KERNEL_TEST(CrossEntropyTest);

std::vector<int32_t> TargetsFor(int64_t rows, int64_t vocabulary) {
  std::vector<int32_t> targets;
  // Every fifth row does not count.
  for (int64_t r = 0; r < rows; ++r) {
    targets.push_back(r % 5 == 3 ? -1
                                 : static_cast<int32_t>(r * 31 % vocabulary));
  }
  return targets;
}

TEST_P(CrossEntropyTest, FollowsTheFormula) {
  for (const int64_t rows : {0, 1, 7, 17, 257}) {
    for (const int64_t vocabulary : {1, 15, 256, 1003}) {
      for (const float scale : {0.1f, 3.0f, 30.0f}) {
        const std::vector<float> logits =
            RandomFloats(1, rows * vocabulary, scale);
        const std::vector<int32_t> targets = TargetsFor(rows, vocabulary);
        const CrossEntropyReference expected =
            CrossEntropyOf(ToDouble(logits), targets);
        std::vector<float> one_losses, one_gradient;
        for (const int threads : {1, 2, 3}) {
          Unaligned<float> x(logits, threads);
          Unaligned<int32_t> t(targets, threads);
          Unaligned<float> losses(std::vector<float>(rows), threads);
          Unaligned<float> losses_only(std::vector<float>(rows), threads);

          ASSERT_TRUE(CrossEntropyForward(StreamOf(threads), x.data(), t.data(),
                                          rows, vocabulary, losses_only.data())
                          .ok());
          ASSERT_TRUE(BitEqual(x.values(), logits));
          ASSERT_TRUE(CrossEntropyForwardBackward(StreamOf(threads), x.data(),
                                                  t.data(), rows, vocabulary,
                                                  losses.data())
                          .ok());

          // Differences of logits of up to 250 are rounded to 2^-17 at worst
          // before the exponential; the sum's own roundings are smaller.
          const double relative = scale == 30 ? 2e-5 : 5e-6;
          ASSERT_TRUE(BitEqual(losses.values(), losses_only.values()));
          ASSERT_TRUE(AllNear(losses.values(), expected.losses, 2e-6, 2e-6));
          ASSERT_TRUE(AllNear(x.values(), expected.gradient, 2e-6, relative));
          if (threads == 1) {
            one_losses = losses.values();
            one_gradient = x.values();
          }
          ASSERT_TRUE(BitEqual(losses.values(), one_losses));
          ASSERT_TRUE(BitEqual(x.values(), one_gradient));
        }
      }
    }
  }
}

TEST_P(CrossEntropyTest, ARowDoesNotDependOnWhereItStands) {
  const int64_t vocabulary = 45;
  const std::vector<float> logits = RandomFloats(1, 3 * vocabulary);
  const std::vector<int32_t> targets = {4, 4, 4};
  std::vector<float> whole = logits;
  std::vector<float> losses(3);
  ASSERT_TRUE(CrossEntropyForwardBackward(StreamOf(1), whole.data(),
                                          targets.data(), 3, vocabulary,
                                          losses.data())
                  .ok());
  for (int64_t row = 0; row < 3; ++row) {
    for (int64_t offset = 0; offset < 16; ++offset) {
      Unaligned<float> x(
          std::vector<float>(logits.begin() + row * vocabulary,
                             logits.begin() + (row + 1) * vocabulary),
          offset);
      float loss = 0;
      ASSERT_TRUE(CrossEntropyForwardBackward(StreamOf(1), x.data(),
                                              targets.data(), 1, vocabulary,
                                              &loss)
                      .ok());
      ASSERT_EQ(loss, losses[row]);
      ASSERT_TRUE(
          BitEqual(x.values(),
                   std::vector<float>(whole.begin() + row * vocabulary,
                                      whole.begin() + (row + 1) * vocabulary)));
    }
  }
}

TEST_P(CrossEntropyTest, HugeLogitsDoNotOverflow) {
  std::vector<float> logits = {1e30f, -1e30f, 1e30f, 0};
  const std::vector<int32_t> targets = {0};
  float loss = 0;
  ASSERT_TRUE(CrossEntropyForwardBackward(StreamOf(1), logits.data(),
                                          targets.data(), 1, 4, &loss)
                  .ok());
  EXPECT_FLOAT_EQ(loss, std::log(2.0f));
  EXPECT_EQ(logits, (std::vector<float>{-0.5f, 0, 0.5f, 0}));
}

TEST_P(CrossEntropyTest, WhatIsNotFiniteShowsInTheLoss) {
  for (const float bad : {kNan, kInf}) {
    for (int64_t at = 0; at < 35; ++at) {
      std::vector<float> logits = RandomFloats(1, 35);
      logits[at] = bad;
      const std::vector<int32_t> targets = {4};
      float loss = 0;
      ASSERT_TRUE(CrossEntropyForwardBackward(StreamOf(1), logits.data(),
                                              targets.data(), 1, 35, &loss)
                      .ok());
      ASSERT_FALSE(std::isfinite(loss)) << bad << " at " << at;
      bool seen = false;
      for (const float g : logits) seen = seen || std::isnan(g);
      ASSERT_TRUE(seen);
    }
  }
  // Nothing but NaN; and a target that cannot be.
  for (const float all : {kNan, -kInf}) {
    std::vector<float> logits(20, all);
    const std::vector<int32_t> targets = {4};
    float loss = 0;
    ASSERT_TRUE(CrossEntropyForward(StreamOf(1), logits.data(), targets.data(),
                                    1, 20, &loss)
                    .ok());
    EXPECT_FALSE(std::isfinite(loss));
  }
}

TEST(CrossEntropyReferenceTest, GradientIsTheSlope) {
  std::vector<double> logits = ToDouble(RandomFloats(1, 3 * 7));
  const std::vector<int32_t> targets = {0, 6, 3};
  const auto loss = [&] {
    double sum = 0;
    for (const double l : CrossEntropyOf(logits, targets).losses) sum += l;
    return sum;
  };
  const auto gradient = CrossEntropyOf(logits, targets).gradient;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double at = logits[i];
    logits[i] = at + 1e-5;
    const double above = loss();
    logits[i] = at - 1e-5;
    const double below = loss();
    logits[i] = at;
    EXPECT_NEAR((above - below) / 2e-5, gradient[i], 1e-8);
  }
}

TEST_P(CrossEntropyTest, WrongArgumentsAreRefused) {
  float f = 0;
  int32_t target = 0;
  EXPECT_EQ(CrossEntropyForward(StreamOf(1), &f, &target, 1, 0, &f).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      CrossEntropyForwardBackward(StreamOf(1), &f, nullptr, 1, 1, &f).code(),
      absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lockstep::kernels
