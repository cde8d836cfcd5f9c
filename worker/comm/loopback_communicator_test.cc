#include "worker/comm/loopback_communicator.h"

#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

TEST(LoopbackCommunicatorTest, DifferentCallsFailBothRanksAndNameBoth) {
  auto group = MakeLoopbackGroup(2);
  std::vector<int64_t> a(4), b(5);

  absl::Status other;
  std::thread thread([&] { other = group[1]->AllReduceSum(b.data(), 5); });
  const absl::Status status = group[0]->AllReduceSum(a.data(), 4);
  thread.join();

  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(other, status);
  EXPECT_THAT(std::string(status.message()), HasSubstr("AllReduceSum(n=4"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("AllReduceSum(n=5"));
}

TEST(LoopbackCommunicatorTest, AWorldOfOneWaitsForNobody) {
  auto group = MakeLoopbackGroup(1);
  std::vector<int64_t> data = {3, -4, 5};
  const std::vector<int64_t> before = data;

  EXPECT_TRUE(group[0]->AllReduceSum(data.data(), 3).ok());
  EXPECT_TRUE(group[0]->AllReduceMax(data.data(), 3).ok());
  EXPECT_TRUE(group[0]->Barrier().ok());

  EXPECT_EQ(data, before);
  EXPECT_EQ(group[0]->sent_bytes(), 0);
}

}  // namespace
}  // namespace lockstep
