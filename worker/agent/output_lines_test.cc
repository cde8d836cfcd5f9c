#include "worker/agent/output_lines.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

TEST(OutputLinesTest, LinesComeOutWholeWhereverTheOutputIsCut) {
  const std::string text = "one\n\ntwo two\r\nthree\n";
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    OutputLines lines;
    std::vector<std::string> got;
    for (size_t at = 0; at < text.size(); at += piece) {
      for (std::string& l :
           lines.Append(absl::string_view(text).substr(at, piece))) {
        got.push_back(std::move(l));
      }
    }
    EXPECT_THAT(got, ElementsAre("one", "", "two two\r", "three")) << piece;
    EXPECT_THAT(lines.Finish(), IsEmpty());
    EXPECT_EQ(lines.Last(), "one | two two | three");
  }
}

TEST(OutputLinesTest, WhatHasNoEndOfLineIsGivenWhenTheOutputEnds) {
  OutputLines lines;
  EXPECT_THAT(lines.Append("a\nlast words"), ElementsAre("a"));

  EXPECT_THAT(lines.Finish(), ElementsAre("last words"));

  EXPECT_EQ(lines.Last(), "a | last words");
}

TEST(OutputLinesTest, ALineWithoutEndIsCutAndTakesNoMoreRoom) {
  OutputLines lines;
  const auto got =
      lines.Append(std::string(2 * OutputLines::kLineBytesMax + 5, 'x') + "\n");

  ASSERT_THAT(got, SizeIs(3));
  EXPECT_THAT(got[0], SizeIs(OutputLines::kLineBytesMax));
  EXPECT_THAT(got[1], SizeIs(OutputLines::kLineBytesMax));
  EXPECT_EQ(got[2], "xxxxx");
}

TEST(OutputLinesTest, ALineOfExactlyTheGreatestLengthIsOneLine) {
  OutputLines lines;
  const std::string longest(OutputLines::kLineBytesMax, 'x');
  EXPECT_THAT(lines.Append(longest + "\nnext\n"), ElementsAre(longest, "next"));
}

TEST(OutputLinesTest, RemembersOnlyTheLastLinesWithinBounds) {
  OutputLines lines;
  for (int i = 0; i < 100; ++i) lines.Append(absl::StrCat("line ", i, "\n"));
  EXPECT_THAT(lines.Last(), StartsWith("line 80 | "));
  EXPECT_THAT(lines.Last(), EndsWith("line 99"));

  for (int i = 0; i < 100; ++i) lines.Append(std::string(1000, 'y') + "\n");
  EXPECT_LE(lines.Last().size(), OutputLines::kLastBytesMax + 3 * 20);
  EXPECT_GE(lines.Last().size(), OutputLines::kLastBytesMax / 2);
  EXPECT_THAT(lines.Last(), EndsWith("y..."));
}

TEST(OutputLinesTest, WhatOurLogSaysInPassingIsNoLastWord) {
  OutputLines lines;
  const std::string text =
      "2026-01-31T23:59:59.999Z ERROR no device\n"
      "2026-01-31T23:59:59.999Z INFO step trace\n";
  EXPECT_EQ(lines.Append(text).size(), 2u);
  EXPECT_EQ(lines.Last(), "2026-01-31T23:59:59.999Z ERROR no device");
}

}  // namespace
}  // namespace lockstep
