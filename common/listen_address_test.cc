#include "common/listen_address.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

TEST(ListenAddressTest, OffLoopbackOnlyInsecurely) {
  for (const char* host : {"127.0.0.1", "127.1.2.3", "localhost", "::1"}) {
    EXPECT_TRUE(RequireLoopbackUnless(false, {host, 7600}).ok()) << host;
  }
  for (const char* host :
       {"0.0.0.0", "::", "127.0.0.1.example.org", "node-1"}) {
    EXPECT_EQ(RequireLoopbackUnless(false, {host, 7600}).code(),
              absl::StatusCode::kFailedPrecondition)
        << host;
    EXPECT_TRUE(RequireLoopbackUnless(true, {host, 7600}).ok()) << host;
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
