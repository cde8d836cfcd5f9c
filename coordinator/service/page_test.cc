#include "coordinator/service/page.h"

#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(PageTest, SizesHaveADefaultAndALimit) {
  EXPECT_EQ(PageSize(0, 100, 1000).value(), 100);
  EXPECT_EQ(PageSize(1, 100, 1000).value(), 1);
  EXPECT_EQ(PageSize(1001, 100, 1000).value(), 1000);
  EXPECT_EQ(PageSize(-1, 100, 1000).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(PageTest, ATokenServesItsOwnListOnly) {
  const std::string token = MakePageToken("jobs 1", "17 3");

  EXPECT_EQ(ParsePageToken("jobs 1", token).value(), "17 3");
  EXPECT_EQ(ParsePageToken("jobs 1", "").value(), "");
  for (const std::string& wrong :
       {MakePageToken("jobs 2", "17 3"), std::string("17"), std::string("%"),
        token.substr(0, 8), MakePageToken("jobs 1", "")}) {
    EXPECT_EQ(ParsePageToken("jobs 1", wrong).status().code(),
              absl::StatusCode::kInvalidArgument)
        << wrong;
  }
}

}  // namespace
}  // namespace lockstep
