#include "worker/trainer/loss_watch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "common/philox.h"

namespace lockstep {
namespace {

// -1 to 1; a function of i.
double Noise(uint32_t i) {
  return 2 * UniformFrom(Philox4x32({i, 0, 0, 0}, {1, 2})[0]) - 1;
}

TEST(LossWatchTest, ADescentWithNoiseHasNoSpike) {
  LossWatch watch;
  for (uint32_t step = 0; step < 2000; ++step) {
    const double loss = 2 + 9 * std::exp(-0.01 * step) + 0.15 * Noise(step);
    EXPECT_FALSE(watch.IsSpike(loss)) << step;
  }
}

TEST(LossWatchTest, AJumpIsASpikeAndWhatFollowsIsNot) {
  LossWatch watch;
  for (uint32_t step = 0; step < 100; ++step) {
    ASSERT_FALSE(watch.IsSpike(3 + 0.05 * Noise(step)));
  }

  EXPECT_TRUE(watch.IsSpike(3.8));
  EXPECT_FALSE(watch.IsSpike(3.02));
  // Nor is a drop.
  EXPECT_FALSE(watch.IsSpike(1));
  // Again, and it stays up: seen until it is the new usual.
  int seen = 0;
  for (uint32_t step = 0; step < 200; ++step) {
    seen += watch.IsSpike(4 + 0.05 * Noise(step));
  }
  EXPECT_GE(seen, 16);
  EXPECT_LE(seen, LossWatch::kWindow);
}

TEST(LossWatchTest, SmallChangesOfASteadyLossAreNone) {
  LossWatch watch;
  for (int step = 0; step < 100; ++step) ASSERT_FALSE(watch.IsSpike(2));
  EXPECT_FALSE(watch.IsSpike(2.09));
  EXPECT_TRUE(watch.IsSpike(2.11));
}

TEST(LossWatchTest, TooFewAndWhatIsNotFiniteSayNothing) {
  LossWatch watch;
  for (int step = 0; step < LossWatch::kCountMin; ++step) {
    EXPECT_FALSE(watch.IsSpike(step == 5 ? 100 : 2));
    EXPECT_FALSE(watch.IsSpike(std::numeric_limits<double>::quiet_NaN()));
  }
  EXPECT_FALSE(watch.IsSpike(std::numeric_limits<double>::infinity()));
  EXPECT_TRUE(watch.IsSpike(100));
}

}  // namespace
}  // namespace lockstep
