#include "cli/text.h"

#include <limits>
#include <sstream>

#include "cli/table.h"
#include "gtest/gtest.h"

namespace lockstep::cli {
namespace {

TEST(TextTest, Durations) {
  struct {
    absl::Duration duration;
    const char* text;
  } const kCases[] = {
      {absl::Seconds(-5), "0s"},
      {absl::Milliseconds(499), "0s"},
      {absl::Milliseconds(500), "1s"},
      {absl::Milliseconds(59'499), "59s"},
      {absl::Milliseconds(59'500), "1m00s"},
      {absl::Seconds(80), "1m20s"},
      {absl::Seconds(3599), "59m59s"},
      {absl::Seconds(7500), "2h05m"},
      {absl::Hours(76), "3d04h"},
  };
  for (const auto& c : kCases) EXPECT_EQ(DurationText(c.duration), c.text);
}

TEST(TextTest, CountsAndBytesHaveThreeDigits) {
  EXPECT_EQ(CountText(0), "0");
  EXPECT_EQ(CountText(999.4), "999");
  EXPECT_EQ(CountText(999.6), "1.00k");
  EXPECT_EQ(CountText(12'345), "12.3k");
  EXPECT_EQ(CountText(999'499), "999k");
  EXPECT_EQ(CountText(999'500), "1.00M");
  EXPECT_EQ(CountText(1e21), "1000E");
  EXPECT_EQ(CountText(std::numeric_limits<double>::infinity()), "inf");
  EXPECT_EQ(BytesText(0), "0 B");
  EXPECT_EQ(BytesText(1023), "1023 B");
  EXPECT_EQ(BytesText(1024), "1.00 KiB");
  EXPECT_EQ(BytesText(int64_t{24} << 30), "24.0 GiB");
}

TEST(TextTest, TimesAreUtc) {
  google::protobuf::Timestamp time;
  EXPECT_EQ(TimeText(time), "-");
  time.set_seconds(1'700'000'000);
  EXPECT_EQ(TimeText(time), "2023-11-14 22:13:20");
}

TEST(TextTest, TextOfOthersCannotDriveTheTerminal) {
  EXPECT_EQ(OneLine("caf\xC3\xA9"), "caf\xC3\xA9");
  EXPECT_EQ(OneLine("a\x1B[2J\nb"), "a\\033[2J\\nb");
  EXPECT_EQ(OneLine("\xFF"), "\\377");
}

TEST(TextTest, FitCutsAtCharacters) {
  EXPECT_EQ(Fit("abc", 3), "abc");
  EXPECT_EQ(Fit("abcd", 3), "ab~");
  EXPECT_EQ(Fit("\xC3\xA9\xC3\xA9\xC3\xA9", 3), "\xC3\xA9\xC3\xA9\xC3\xA9");
  EXPECT_EQ(Fit("\xC3\xA9\xC3\xA9\xC3\xA9", 2), "\xC3\xA9~");
  EXPECT_EQ(Fit("abc", 0), "");
}

TEST(TextTest, Prefixes) {
  EXPECT_EQ(WithPrefix("jobs/", "x"), "jobs/x");
  EXPECT_EQ(WithPrefix("jobs/", "jobs/x"), "jobs/x");
  EXPECT_EQ(WithoutPrefix("workers/", "workers/w1"), "w1");
  EXPECT_EQ(WithoutPrefix("workers/", "w1"), "w1");
}

TEST(TableTest, ColumnsAreAsWideAsTheirContents) {
  Table table(
      {{.title = "NAME"}, {.title = "N", .right = true}, {.title = ""}});
  table.Add({"a", "5", ""});
  table.Add({"\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9", "12345", "x\n"});
  std::ostringstream out;

  table.Print(out);

  EXPECT_EQ(out.str(),
            "NAME       N\n"
            "a          5\n"
            "\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9  12345  x\\n\n");
}

}  // namespace
}  // namespace lockstep::cli
