#include "cli/numbers.h"

#include <limits>
#include <string>

#include "gtest/gtest.h"

namespace lockstep::cli {
namespace {

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

TEST(NumbersTest, IntegersInAnyNotationOfAWholeValue) {
  struct {
    const char* text;
    int64_t value;
  } const kCases[] = {
      {"0", 0},
      {"-0", 0},
      {"+5", 5},
      {"-17", -17},
      {"1e6", 1'000'000},
      {"1E+6", 1'000'000},
      {"2.5e1", 25},
      {"1.0", 1},
      {"0.0", 0},
      {"0e999999999999", 0},
      {"1200e-2", 12},
      {"5.", 5},
      {".5e1", 5},
      {"9223372036854775807", kMax},
      {"-9223372036854775808", kMin},
      // No double has these.
      {"9007199254740993", 9007199254740993},
      {"9007199254740.993e3", 9007199254740993},
  };
  for (const auto& c : kCases) {
    const auto value = ParseInteger(c.text, kMin, kMax);
    ASSERT_TRUE(value.ok()) << c.text << ": " << value.status();
    EXPECT_EQ(*value, c.value) << c.text;
  }
}

TEST(NumbersTest, WhatIsNoIntegerSaysWhatToWrite) {
  struct {
    const char* text;
    const char* message;
  } const kCases[] = {
      {"", "expected a whole number, got \"\""},
      {"-", "expected a whole number, got \"-\""},
      {".", "expected a whole number, got \".\""},
      {"e5", "expected a whole number, got \"e5\""},
      {"1e", "expected a whole number, got \"1e\""},
      {"1e+", "expected a whole number, got \"1e+\""},
      {"1e5x", "expected a whole number, got \"1e5x\""},
      {"1.2.3", "expected a whole number, got \"1.2.3\""},
      {"many", "expected a whole number, got \"many\""},
      {"10k", "expected a whole number, got \"10k\""},
      {"1.5", "expected a whole number, got \"1.5\""},
      {"1e-1", "expected a whole number, got \"1e-1\""},
      {"1_000", "expected a whole number, got \"1_000\": write 1000"},
      {"1,000", "expected a whole number, got \"1,000\": write 1000"},
      {"1,5", "expected a whole number, got \"1,5\""},
      {"0x10", "expected a whole number, got \"0x10\": write it in decimal"},
      {"0o17", "expected a whole number, got \"0o17\": write it in decimal"},
      {"010", "expected a whole number, got \"010\": write 10"},
      {"-007", "expected a whole number, got \"-007\": write -7"},
      {"nan", "expected a whole number, got \"nan\""},
      {"11", "expected a whole number, 0 to 10, got \"11\""},
      {"-1", "expected a whole number, 0 to 10, got \"-1\""},
      {"1e400", "expected a whole number, 0 to 10, got \"1e400\""},
      {"99999999999999999999999999999999999999999999",
       "expected a whole number, 0 to 10, got "
       "\"99999999999999999999999999999999999999999999\""},
      {"9223372036854775808",
       "expected a whole number, 0 to 10, got \"9223372036854775808\""},
  };
  for (const auto& c : kCases) {
    const auto value = ParseInteger(c.text, 0, 10);
    ASSERT_FALSE(value.ok()) << c.text;
    EXPECT_EQ(value.status().message(), c.message);
  }
}

TEST(NumbersTest, Doubles) {
  struct {
    const char* text;
    double value;
  } const kCases[] = {
      {"2e-3", 0.002}, {"+0.1", 0.1},  {".5", 0.5},      {"5.", 5},
      {"3", 3},        {"-1E2", -100}, {"1e308", 1e308}, {"5e-324", 5e-324},
  };
  for (const auto& c : kCases) {
    const auto value = ParseDouble(c.text);
    ASSERT_TRUE(value.ok()) << c.text << ": " << value.status();
    EXPECT_EQ(*value, c.value) << c.text;
  }
  struct {
    const char* text;
    const char* message;
  } const kFaulty[] = {
      {"nan", "expected a number, got \"nan\""},
      {".nan", "expected a number, got \".nan\""},
      {"inf", "expected a number, got \"inf\""},
      {"0x1p3", "expected a number, got \"0x1p3\": write it in decimal"},
      {"1_0.5", "expected a number, got \"1_0.5\": write 10.5"},
      {"0,1", "expected a number, got \"0,1\": write 0.1"},
      {"1,234,567.5",
       "expected a number, got \"1,234,567.5\": write 1234567.5"},
      {"10%", "expected a number, got \"10%\""},
      {"1e309", "expected a number that a double can hold, got \"1e309\""},
      {"1e-400", "expected a number that a double can hold, got \"1e-400\""},
  };
  for (const auto& c : kFaulty) {
    const auto value = ParseDouble(c.text);
    ASSERT_FALSE(value.ok()) << c.text;
    EXPECT_EQ(value.status().message(), c.message);
  }
}

}  // namespace
}  // namespace lockstep::cli
