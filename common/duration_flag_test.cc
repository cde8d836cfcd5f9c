#include "common/duration_flag.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(DurationFlagTest, TakesWhatATimerCanWait) {
  EXPECT_EQ(*ParseDurationFlag("500ms"), absl::Milliseconds(500));
  EXPECT_EQ(*ParseDurationFlag("1m30s"), absl::Seconds(90));
  EXPECT_EQ(*ParseDurationFlag("8760h"), absl::Hours(24 * 365));
}

TEST(DurationFlagTest, RefusesTheRest) {
  for (const char* text :
       {"", "5", "soon", "0", "0s", "-1s", "inf", "8761h", "10 s", "1e400s"}) {
    const auto duration = ParseDurationFlag(text);
    ASSERT_FALSE(duration.ok()) << text;
    EXPECT_THAT(
        std::string(duration.status().message()),
        testing::StartsWith("expected a duration above 0, such as 500ms, 10s"));
  }
}

}  // namespace
}  // namespace lockstep
