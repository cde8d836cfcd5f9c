#include "coordinator/service/listen_address.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

TEST(ListenAddressTest, ReadsHostAndPort) {
  struct Case {
    const char* text;
    const char* host;
    int port;
    bool loopback;
  };
  for (const Case& c :
       {Case{"127.0.0.1:7600", "127.0.0.1", 7600, true},
        Case{"127.1.2.3:0", "127.1.2.3", 0, true},
        Case{"localhost:65535", "localhost", 65535, true},
        Case{"[::1]:7600", "::1", 7600, true},
        Case{"0.0.0.0:7600", "0.0.0.0", 7600, false},
        Case{"[::]:7600", "::", 7600, false},
        Case{"127.0.0.1.example.org:1", "127.0.0.1.example.org", 1, false},
        Case{"node-1:7600", "node-1", 7600, false}}) {
    const auto address = ParseListenAddress(c.text);
    ASSERT_TRUE(address.ok()) << c.text;
    EXPECT_EQ(address->host, c.host);
    EXPECT_EQ(address->port, c.port);
    EXPECT_EQ(address->IsLoopback(), c.loopback) << c.text;
    EXPECT_EQ(address->ToString(), c.text);
    EXPECT_TRUE(RequireLoopbackUnless(true, *address).ok());
    EXPECT_EQ(RequireLoopbackUnless(false, *address).ok(), c.loopback);
  }
}

TEST(ListenAddressTest, WhatIsNoAddressIsRefused) {
  for (const char* text :
       {"", "7600", ":7600", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536",
        "127.0.0.1:-1", "::1:7600", "[127.0.0.1]:1", "unix:/tmp/x", "a/b:1",
        "host:port"}) {
    EXPECT_FALSE(ParseListenAddress(text).ok()) << text;
  }
}

TEST(ListenAddressTest, SaysWhyNothingCanListen) {
  const int taken = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(bind(taken, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(taken, 1), 0);
  ASSERT_EQ(getsockname(taken, reinterpret_cast<sockaddr*>(&address), &size),
            0);
  const int port = ntohs(address.sin_port);

  const absl::Status status = ProbeListenAddress({"127.0.0.1", port});
  EXPECT_THAT(std::string(status.message()), HasSubstr("already in use"));
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::to_string(port)));
  close(taken);
  EXPECT_TRUE(ProbeListenAddress({"127.0.0.1", port}).ok());
  EXPECT_THAT(std::string(ProbeListenAddress({"192.0.2.1", 7600}).message()),
              HasSubstr("Cannot assign"));
}

}  // namespace
}  // namespace lockstep
