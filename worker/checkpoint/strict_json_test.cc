#include "worker/checkpoint/strict_json.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/data/test_files.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

TEST(StrictJsonTest, ParsesNestedValues) {
  const auto json = ParseStrictJson(
      R"({"a": {"x": 1}, "x": 2, "b": [{"x": null}, {"x": 3}]} )");
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ((*json)["a"]["x"], 1);
  EXPECT_TRUE((*json)["b"][0]["x"].is_null());
}

TEST(StrictJsonTest, NamesARepeatedKeyAtAnyDepth) {
  for (const char* text :
       {R"({"k": 1, "k": 1})", R"([{"a": {"k": 1, "b": 2, "k": 3}}])",
        R"({"k": {"k": 1}, "a": 0, "k": 2})", R"({"k": 1, "\u006b": 2})"}) {
    EXPECT_THAT(ParseStrictJson(text).status().message(),
                HasSubstr("key \"k\" comes twice"))
        << text;
  }
}

TEST(StrictJsonTest, NamesTheByteOfAnError) {
  struct Case {
    std::string text;
    const char* said;
  };
  const Case cases[] = {{R"({"a" 1})", "byte 105: "},
                        {"{\"a\": \"x\xff\"}", "byte 108: "},
                        {R"({"a": 1)", "byte 107: "},
                        {R"({"a": 1} x)", "byte 109: "},
                        {std::string("{}\0x", 4), "byte 102: "},
                        {"", "byte 100: "}};
  for (const Case& c : cases) {
    const absl::Status status = ParseStrictJson(c.text, 100).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.said));
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("expected JSON in UTF-8"));
  }
}

TEST(StrictJsonTest, ErrorsOfAFileNameIt) {
  TestFolder folder;
  const std::string path = folder.Write("config.json", "{,}");
  EXPECT_THAT(ReadStrictJsonFile(path).status().message(),
              HasSubstr(path + ": byte 1: "));
  EXPECT_EQ(ReadStrictJsonFile(folder.Path("absent")).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace lockstep
