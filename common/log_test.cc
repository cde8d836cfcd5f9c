#include "common/log.h"

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::MatchesRegex;

TEST(LogTest, FieldsAreQuotedOnlyWhereTheyMustBe) {
  EXPECT_EQ(Field("job", "j-abc"), " job=j-abc");
  EXPECT_EQ(Field("count", 3), " count=3");
  EXPECT_EQ(Field("reason", "two words"), " reason=\"two words\"");
  EXPECT_EQ(Field("empty", ""), " empty=\"\"");
  EXPECT_EQ(Field("text", "it's \xC3\xBC"), " text=\"it's \xC3\xBC\"");
  EXPECT_EQ(Field("tricky", "a=\"b\"\n"), " tricky=\"a=\\\"b\\\"\\n\"");
}

TEST(LogTest, ARecordIsOneLineWithLevelAndUtcMilliseconds) {
  const absl::Time time = absl::FromUnixMillis(1'700'000'000'042);

  EXPECT_EQ(FormatLogLine(time, google::GLOG_WARNING, "a.cc", 7, "one\ntwo"),
            "2023-11-14T22:13:20.042Z WARNING one\\ntwo");
  EXPECT_EQ(FormatLogLine(time, google::GLOG_FATAL, "a.cc", 7, "gone"),
            "2023-11-14T22:13:20.042Z FATAL gone at=a.cc:7");
}

TEST(LogTest, ThreadsWriteWholeLinesToStandardErrorOnceEach) {
  static const bool initialised = [] {
    InitLog("log_test");
    return true;
  }();
  ASSERT_TRUE(initialised);
  testing::internal::CaptureStderr();

  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 50; ++i) {
        LOG(INFO) << "line" << Field("thread", t) << Field("number", i);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  const std::string text = testing::internal::GetCapturedStderr();
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  ASSERT_EQ(lines.back(), "");
  lines.pop_back();
  EXPECT_EQ(lines.size(), 200u);
  for (const std::string& line : lines) {
    EXPECT_THAT(line, MatchesRegex("....-..-..T..:..:......Z INFO line "
                                   "thread=[0-3] number=[0-9]+"));
  }
}

TEST(LogTest, InfoLinesAreKnownByTheirForm) {
  EXPECT_TRUE(IsInfoLine(FormatLogLine(absl::UnixEpoch(), 0, "f", 1, "x")));
  for (const int severity : {1, 2, 3}) {
    EXPECT_FALSE(
        IsInfoLine(FormatLogLine(absl::UnixEpoch(), severity, "f", 1, "x")));
  }
  EXPECT_FALSE(IsInfoLine("terminate called after throwing INFO"));
  EXPECT_FALSE(IsInfoLine(""));
}

}  // namespace
}  // namespace lockstep
