#include "worker/parallel/exact_loss.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "worker/comm/loopback_communicator.h"
#include "worker/comm/test_group.h"

namespace lockstep {
namespace {

TEST(ExactLossTest, ALossIsRoundedOnceToItsUnit) {
  ExactLoss loss;
  loss.Add({.nats = 3 + 0x1.8p-33, .token_count = 5});  // Up.
  EXPECT_EQ(loss.units, (absl::int128(3) << 32) + 1);
  loss.Add({.nats = 0x1p-33, .token_count = 1});  // A tie, to even.
  EXPECT_EQ(loss.units, (absl::int128(3) << 32) + 1);
  EXPECT_EQ(loss.token_count, 6);
}

TEST(ExactLossTest, TheMeanIsOverTheTokens) {
  ExactLoss loss;
  loss.Add({.nats = 10.5, .token_count = 4});
  loss.Add({.nats = 1.5, .token_count = 2});
  EXPECT_EQ(loss.mean(), 2.0);
}

TEST(ExactLossTest, NoTokensOrNoNumberGivesNoMean) {
  EXPECT_TRUE(std::isnan(ExactLoss().mean()));
  for (const double bad :
       {std::numeric_limits<double>::infinity(), std::nan(""), -0x1p40}) {
    ExactLoss loss;
    loss.Add({.nats = 1, .token_count = 1});
    loss.Add({.nats = bad, .token_count = 1});
    EXPECT_TRUE(std::isnan(loss.mean())) << bad;
    EXPECT_EQ(loss.not_finite_count, 1);
  }
}

TEST(ExactLossTest, WordsCarryEveryValueAndAddUp) {
  const absl::int128 one = 1;
  const std::vector<absl::int128> values = {
      0,
      1,
      -1,
      (one << 32) - 1,
      -(one << 32),
      (one << 64) + 12345,
      -(one << 70),
  };
  for (const absl::int128& a : values) {
    for (const absl::int128& b : values) {
      const ExactLossWords x = ToWords({.units = a, .token_count = 2});
      const ExactLossWords y = ToWords({.units = b, .token_count = 3});
      ExactLossWords sum;
      for (int i = 0; i < kExactLossWordCount; ++i) sum[i] = x[i] + y[i];
      EXPECT_EQ(FromWords(sum), (ExactLoss{.units = a + b, .token_count = 5}));
    }
  }
}

// Evaluation: micro-batches dealt out in any way give the same bits, also to a
// rank that has none.
TEST(ExactLossTest, TheSumOverRanksDoesNotDependOnTheSplit) {
  std::vector<LossSum> losses;
  for (int i = 0; i < 11; ++i) {
    losses.push_back({.nats = 1000.1 / (i + 1), .token_count = 7 + i});
  }
  ExactLoss expected;
  for (const LossSum& l : losses) expected.Add(l);

  for (const int world : {1, 2, 3, 4}) {
    auto group = MakeLoopbackGroup(world);
    ForEachRank(world, [&](int rank) {
      CommThread comm(std::move(group[rank]));
      ExactLoss mine;
      for (int i = 0; i < 11; ++i) {
        // The last rank of several has nothing.
        if (i % std::max(1, world - 1) == rank) mine.Add(losses[i]);
      }
      const auto sum = SumOverRanks(comm, mine);
      ASSERT_TRUE(sum.ok());
      EXPECT_EQ(*sum, expected);
    });
  }
}

}  // namespace
}  // namespace lockstep
