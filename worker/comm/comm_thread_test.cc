#include "worker/comm/comm_thread.h"

#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "worker/comm/loopback_communicator.h"

namespace lockstep {
namespace {

TEST(CommThreadTest, TasksRunInTheOrderOfPostingOnOneOtherThread) {
  CommThread thread(std::move(MakeLoopbackGroup(1)[0]));
  std::vector<int> order;
  std::vector<std::thread::id> ids;

  for (int i = 0; i < 50; ++i) {
    thread.Post([&, i](Communicator&) {
      order.push_back(i);
      ids.push_back(std::this_thread::get_id());
      return absl::OkStatus();
    });
  }
  ASSERT_TRUE(thread.Wait().ok());

  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(order[i], i);
    EXPECT_EQ(ids[i], ids[0]);
  }
  EXPECT_NE(ids[0], std::this_thread::get_id());
}

TEST(CommThreadTest, TheFirstErrorStaysAndNothingRunsAfterIt) {
  auto group = MakeLoopbackGroup(2);
  CommThread thread(std::move(group[0]));
  const absl::Status error = absl::InternalError("the device is gone");
  bool ran = false;
  const auto fail = [&](Communicator&) { return error; };
  const auto run = [&](Communicator&) {
    ran = true;
    return absl::OkStatus();
  };

  thread.Post(fail);
  thread.Post(run);
  EXPECT_EQ(thread.Wait(), error);
  EXPECT_EQ(thread.Run(run), error);
  EXPECT_FALSE(ran);

  // The other rank does not wait in vain.
  EXPECT_EQ(group[1]->Barrier().code(), absl::StatusCode::kAborted);
}

TEST(CommThreadTest, AbortWakesWhoWaits) {
  auto group = MakeLoopbackGroup(2);
  CommThread thread(std::move(group[0]));
  const absl::Status why = absl::CancelledError("cancelled");
  thread.Post([](Communicator& c) { return c.Barrier(); });
  thread.Post([](Communicator& c) { return c.Barrier(); });

  std::thread aborter([&] { thread.Abort(why); });
  EXPECT_EQ(thread.Wait(), why);
  aborter.join();
}

TEST(CommThreadTest, EndingItEndsWhatWaitsForOtherRanks) {
  auto group = MakeLoopbackGroup(2);
  {
    CommThread thread(std::move(group[0]));
    thread.Post([](Communicator& c) { return c.Barrier(); });
  }
  EXPECT_FALSE(group[1]->Barrier().ok());
}

}  // namespace
}  // namespace lockstep
