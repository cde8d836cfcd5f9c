#include "cli/nearest_name.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::cli {
namespace {

using ::testing::ElementsAre;

TEST(NearestNameTest, EditDistance) {
  struct {
    const char* a;
    const char* b;
    int distance;
  } const kCases[] = {
      {"", "", 0},         {"", "abc", 3},        {"abc", "", 3},
      {"abc", "abc", 0},   {"abc", "ABC", 0},     {"abc", "abd", 1},
      {"abc", "ab", 1},    {"abc", "xabc", 1},    {"abc", "acb", 1},
      {"abcd", "badc", 2}, {"ca", "abc", 3},      {"kitten", "sitting", 3},
      {"sise", "size", 1}, {"batch", "bacth", 1},
  };
  for (const auto& c : kCases) {
    EXPECT_EQ(EditDistance(c.a, c.b), c.distance) << c.a << " " << c.b;
    EXPECT_EQ(EditDistance(c.b, c.a), c.distance) << c.b << " " << c.a;
  }
}

TEST(NearestNameTest, NearestAreTheLikelyOnes) {
  const std::vector<std::string> names = {"global_batch_size",
                                          "micro_batch_size", "seed", "decay"};
  EXPECT_THAT(NearestNames("global_batch_sise", names),
              ElementsAre("global_batch_size"));
  EXPECT_THAT(NearestNames("batch_size", names),
              ElementsAre("global_batch_size", "micro_batch_size"));
  EXPECT_THAT(NearestNames("sed", names), ElementsAre("seed"));
  EXPECT_THAT(NearestNames("decay_steps", names), ElementsAre("decay"));
  EXPECT_THAT(NearestNames("lr", names), ElementsAre());
  EXPECT_THAT(NearestNames("", names), ElementsAre());
  EXPECT_THAT(NearestNames(std::string(1 << 20, 'x'), names), ElementsAre());
  EXPECT_THAT(NearestNames("aaaa", {"aaab", "aaac", "aaad", "aaae"}),
              ElementsAre("aaab", "aaac", "aaad"));
}

TEST(NearestNameTest, JoinsWithOr) {
  EXPECT_EQ(JoinWithOr({}), "");
  EXPECT_EQ(JoinWithOr({"a"}), "a");
  EXPECT_EQ(JoinWithOr({"a", "b"}), "a or b");
  EXPECT_EQ(JoinWithOr({"a", "b", "c"}), "a, b or c");
}

}  // namespace
}  // namespace lockstep::cli
