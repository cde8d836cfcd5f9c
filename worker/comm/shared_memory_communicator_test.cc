// What is particular to shared memory; the rest is in collectives_test and
// group_death_test.

#include "worker/comm/shared_memory_communicator.h"

#include <functional>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/layout.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/comm/test_group.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using CallOf = std::function<absl::Status(Communicator&, int64_t* data)>;

TEST(SharedMemoryCommunicatorTest, DifferentCallsEndInAnErrorThatNamesBoth) {
  constexpr int64_t kMany = 200'000;
  const CallOf sum_few = [](Communicator& c, int64_t* data) {
    return c.AllReduceSum(data, 10);
  };
  const CallOf sum_many = [](Communicator& c, int64_t* data) {
    return c.AllReduceSum(data, kMany);
  };
  const struct {
    CallOf first, second;
    const char* names[2];
  } kCases[] = {
      {sum_few,
       [](Communicator& c, int64_t* data) { return c.AllReduceMax(data, 10); },
       {"AllReduceSum(n=10)", "AllReduceMax(n=10)"}},
      {sum_few,
       [](Communicator& c, int64_t* data) { return c.AllReduceSum(data, 11); },
       {"AllReduceSum(n=10)", "AllReduceSum(n=11)"}},
      {sum_many,
       [](Communicator& c, int64_t* data) {
         return c.ReduceScatterSum(data, kMany, kMany);
       },
       {"AllReduceSum(n=200000)", "ReduceScatterSum(n=200000, 200000)"}},
      {[](Communicator& c, int64_t* data) {
         return c.ReduceScatterSum(data, kMany, kMany);
       },
       [](Communicator& c, int64_t* data) {
         return c.ReduceScatterSum(data, kMany, kMany - 1);
       },
       {"ReduceScatterSum(n=200000, 200000)",
        "ReduceScatterSum(n=200000, 199999)"}},
      {sum_many,
       [](Communicator& c, int64_t* data) {
         return c.AllReduceSum(data, kMany - 1);
       },
       {"AllReduceSum(n=200000)", "AllReduceSum(n=199999)"}},
      {[](Communicator& c, int64_t* data) { return c.AllGather(data, 64, 8); },
       [](Communicator& c, int64_t* data) { return c.AllGather(data, 64, 4); },
       {"AllGather(n=64, 8)", "AllGather(n=64, 4)"}},
      {[](Communicator& c, int64_t* data) { return c.Broadcast(data, 64, 0); },
       [](Communicator& c, int64_t* data) { return c.Broadcast(data, 64, 1); },
       {"Broadcast(n=64)", "Broadcast(n=64, 1)"}},
      {[](Communicator& c, int64_t* data) { return c.Broadcast(data, 64, 0); },
       [](Communicator& c, int64_t*) { return c.Barrier(); },
       {"Broadcast(n=64)", "Barrier(n=1)"}},
      // The same call, but another one before it.
      {[](Communicator& c, int64_t* data) {
         return c.AllReduceSum(data, 0).ok() ? c.Barrier()
                                             : absl::InternalError("?");
       },
       [](Communicator& c, int64_t*) { return c.Barrier(); },
       {"Barrier(n=1), collective 2", "Barrier(n=1), collective 1"}},
  };
  for (const auto& test : kCases) {
    auto group = MakeTestGroup(GroupKind::kSharedMemory, 2);
    std::vector<absl::Status> results(2);

    ForEachRank(2, [&](int rank) {
      std::vector<int64_t> data(kMany, rank);
      results[rank] =
          (rank == 0 ? test.first : test.second)(*group[rank], data.data());
    });

    // One of them sees it first.
    const bool internal0 = absl::IsInternal(results[0]);
    EXPECT_TRUE(internal0 || absl::IsInternal(results[1])) << results[0];
    for (const absl::Status& result : results) {
      EXPECT_TRUE(absl::IsInternal(result) || absl::IsAborted(result))
          << result;
      EXPECT_THAT(std::string(result.message()),
                  AllOf(HasSubstr("different calls"), HasSubstr(test.names[0]),
                        HasSubstr(test.names[1])));
    }
  }
}

// Of a rank that left, TCP tells once; of who fails after that it may not.
TEST(SharedMemoryCommunicatorTest, WhoFailsAfterAnotherLeftIsNoticed) {
  auto group = MakeTestGroup(GroupKind::kSharedMemory, 3);
  group[0] = nullptr;
  absl::SleepFor(absl::Milliseconds(50));
  absl::Status status;
  std::thread waiting([&] {
    int64_t data = 0;
    status = group[2]->Broadcast(&data, sizeof(data), 1);
  });
  absl::SleepFor(absl::Milliseconds(50));

  const absl::Time start = absl::Now();
  group[1]->Abort(absl::CancelledError("enough"));
  waiting.join();

  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("rank 1 aborted: enough"));
}

TEST(SharedMemoryCommunicatorTest, BytesAreCountedAsTcpSendsThem) {
  for (const int world : {2, 3, 5}) {
    std::vector<std::vector<std::vector<int64_t>>> counts;
    for (const GroupKind kind : kProcessGroupKinds) {
      auto group = MakeTestGroup(kind, world);
      auto& of_kind = counts.emplace_back(world);
      ForEachRank(world, [&](int rank) {
        Communicator& c = *group[rank];
        const auto count = [&](const absl::Status& status) {
          ASSERT_EQ(status, absl::OkStatus());
          of_kind[rank].push_back(c.sent_bytes());
        };
        for (const int64_t n : {0, 1, 17, 4096, 4097, 70'001, 300'000}) {
          std::vector<int64_t> data(n);
          count(c.AllReduceSum(data.data(), n));
          count(c.AllReduceMax(data.data(), n));
          count(c.ReduceScatterSum(data.data(), n, ShardSize(n, world)));
          count(c.AllGather(data.data(), n, 8));
          count(c.AllGather(data.data(), n, 3));
          count(c.Broadcast(data.data(), n, world - 1));
          count(c.Barrier());
        }
      });
    }
    EXPECT_EQ(counts[0], counts[1]) << world;
  }
}

}  // namespace
}  // namespace lockstep
