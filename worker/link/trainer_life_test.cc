#include "worker/link/trainer_life.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(TrainerLifeTest, AsksToBeKilledWithItsParent) {
  EXPECT_TRUE(EndWithAgent(getppid()).ok());

  int signal = 0;
  ASSERT_EQ(prctl(PR_GET_PDEATHSIG, &signal), 0);
  EXPECT_EQ(signal, SIGKILL);
}

TEST(TrainerLifeTest, AnotherParentMeansThatTheAgentHasDied) {
  EXPECT_EQ(EndWithAgent(getpid()).code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace lockstep
