#include "worker/comm/host_address.h"

#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(HostAddressTest, NumericAddressesStayAsTheyAre) {
  for (const char* host : {"127.0.0.1", "10.1.2.3", "::1", "fd00::7"}) {
    const auto address = NumericHostAddress(host);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(*address, host);
  }
}

TEST(HostAddressTest, AnInterfaceGivesItsAddress) {
  const auto address = NumericHostAddress("lo");
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_EQ(*address, "127.0.0.1");
}

// "localhost" is a name, and a name may mean anything on another day.
TEST(HostAddressTest, NamesAreRefusedWithTheInterfacesThatWouldDo) {
  for (const char* host :
       {"localhost", "example.org", "", "127.0.0", "eth99"}) {
    const auto address = NumericHostAddress(host);
    EXPECT_EQ(address.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(address.status().message().find("lo"), std::string::npos)
        << address.status();
  }
}

TEST(HostAddressTest, OfTheLoopbackInterfaceNoSpeedIsKnown) {
  for (const char* host : {"lo", "127.0.0.1", "::1", "192.0.2.1", "eth99"}) {
    EXPECT_FALSE(LinkBytesPerSecond(host).has_value()) << host;
  }
}

TEST(HostAddressTest, OnlyThisHostsAddressesCanBeListenedOn) {
  EXPECT_TRUE(CheckListenable("127.0.0.1").ok());
  for (const char* other : {"192.0.2.1", "2001:db8::1"}) {
    const absl::Status status = CheckListenable(other);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_NE(status.message().find(other), std::string::npos) << status;
  }
}

}  // namespace
}  // namespace lockstep
