#include "common/host_port.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

TEST(HostPortTest, ReadsNamesAndAddresses) {
  const struct {
    const char* text;
    const char* host;
    int port;
  } kCases[] = {{"localhost:7070", "localhost", 7070},
                {"gpu-1.example.org:1", "gpu-1.example.org", 1},
                {"127.0.0.1:0", "127.0.0.1", 0},
                {"[::1]:65535", "::1", 65535},
                {"my_service:80", "my_service", 80}};
  for (const auto& c : kCases) {
    const auto got = ParseHostPort(c.text);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(got->host, c.host);
    EXPECT_EQ(got->port, c.port);
    EXPECT_EQ(got->ToString(), c.text);
  }
}

TEST(HostPortTest, SaysWhatIsWrong) {
  const struct {
    const char* text;
    const char* says;
  } kCases[] = {{"", "no port"},
                {"localhost", "no port"},
                {":7070", "no host"},
                {"a:", "from 0 to 65535"},
                {"a:x", "from 0 to 65535"},
                {"a:+1", "from 0 to 65535"},
                {"a: 1", "from 0 to 65535"},
                {"a:65536", "from 0 to 65535"},
                {"a:-1", "from 0 to 65535"},
                {"::1:7070", "brackets"},
                {"[::1:7070", "may hold"},
                {"[1.2.3.4]:7070", "no IPv6 address"},
                {"http://a:1", "brackets"},
                {"a b:1", "may hold"},
                {"a/b:1", "may hold"}};
  for (const auto& c : kCases) {
    const auto got = ParseHostPort(c.text);
    EXPECT_EQ(got.status().code(), absl::StatusCode::kInvalidArgument)
        << c.text;
    EXPECT_THAT(std::string(got.status().message()), HasSubstr(c.says))
        << c.text;
  }
}

TEST(HostPortTest, KnowsLoopback) {
  for (const char* host : {"localhost", "LocalHost", "127.0.0.1",
                           "127.255.255.254", "::1", "0:0:0:0:0:0:0:1"}) {
    EXPECT_TRUE(IsLoopback(host)) << host;
  }
  for (const char* host : {"0.0.0.0", "::", "128.0.0.1", "10.0.0.1",
                           "example.org", "127.0.0.1.example.org", ""}) {
    EXPECT_FALSE(IsLoopback(host)) << host;
  }
}

}  // namespace
}  // namespace lockstep
