#include "worker/link/frame.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> Drain(FrameParser& parser) {
  std::vector<std::string> payloads;
  for (;;) {
    const auto next = parser.Next();
    EXPECT_TRUE(next.ok()) << next.status();
    if (!next.ok() || !next->has_value()) return payloads;
    payloads.push_back(**next);
  }
}

TEST(FrameTest, AFrameIsItsLengthLittleEndianAndItsBytes) {
  std::string stream;

  ASSERT_TRUE(AppendFrame(std::string(258, 'x'), stream).ok());

  EXPECT_EQ(stream, std::string("\x02\x01\x00\x00", 4) + std::string(258, 'x'));
}

TEST(FrameTest, FramesComeOutWholeWhereverTheStreamIsCut) {
  const std::vector<std::string> payloads = {"one", "", std::string(1000, 'b'),
                                             "last"};
  std::string stream;
  for (const std::string& p : payloads)
    ASSERT_TRUE(AppendFrame(p, stream).ok());

  for (size_t piece = 1; piece <= stream.size(); ++piece) {
    FrameParser parser;
    std::vector<std::string> got;
    for (size_t at = 0; at < stream.size(); at += piece) {
      parser.Append(absl::string_view(stream).substr(at, piece));
      for (std::string& p : Drain(parser)) got.push_back(std::move(p));
    }
    ASSERT_EQ(got, payloads) << "in pieces of " << piece;
    ASSERT_FALSE(parser.in_frame());
  }
}

TEST(FrameTest, KnowsWhetherTheStreamEndsWithinAFrame) {
  std::string stream;
  ASSERT_TRUE(AppendFrame("payload", stream).ok());

  for (size_t length = 0; length <= stream.size(); ++length) {
    FrameParser parser;
    parser.Append(absl::string_view(stream).substr(0, length));
    Drain(parser);
    EXPECT_EQ(parser.in_frame(), length != 0 && length != stream.size())
        << length;
  }
}

TEST(FrameTest, TheLongestFramePassesAndALongerOneIsRefusedAtBothEnds) {
  std::string stream;
  ASSERT_TRUE(AppendFrame(std::string(kFrameBytesMax, 'x'), stream).ok());
  FrameParser parser;
  parser.Append(stream);
  const auto longest = parser.Next();
  ASSERT_TRUE(longest.ok());
  EXPECT_EQ((*longest)->size(), kFrameBytesMax);

  std::string refused;
  EXPECT_EQ(AppendFrame(std::string(kFrameBytesMax + 1, 'x'), refused).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused, IsEmpty());

  // 16 MiB + 1.
  FrameParser garbage;
  garbage.Append(absl::string_view("\x01\x00\x00\x01", 4));
  EXPECT_EQ(garbage.Next().status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(FrameTest, FramesBeforeGarbageAreStillGiven) {
  std::string stream;
  ASSERT_TRUE(AppendFrame("good", stream).ok());
  FrameParser parser;
  parser.Append(stream);
  parser.Append("\xFF\xFF\xFF\xFF");

  EXPECT_THAT(parser.Next().value(), std::string("good"));
  EXPECT_FALSE(parser.Next().ok());
}

}  // namespace
}  // namespace lockstep
