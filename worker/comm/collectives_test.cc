// What every communicator must do: each test runs over threads, over TCP
// and over shared memory.

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/collective_bytes.h"
#include "common/layout.h"
#include "common/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/comm/test_group.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

// Any 64 bits, so that sums wrap (the finaliser of SplitMix64).
int64_t Value(uint32_t series, int rank, int64_t i) {
  uint64_t x = (uint64_t{series} * 64 + rank) * 0x9E3779B97F4A7C15u + i + 1;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return static_cast<int64_t>(x ^ (x >> 31));
}

std::vector<int64_t> Values(uint32_t series, int rank, int64_t n) {
  std::vector<int64_t> v(n);
  for (int64_t i = 0; i < n; ++i) v[i] = Value(series, rank, i);
  return v;
}

int64_t Sum(uint32_t series, int world, int64_t i) {
  uint64_t sum = 0;
  for (int r = 0; r < world; ++r) sum += Value(series, r, i);
  return static_cast<int64_t>(sum);
}

int64_t Max(uint32_t series, int world, int64_t i) {
  int64_t max = Value(series, 0, i);
  for (int r = 1; r < world; ++r) max = std::max(max, Value(series, r, i));
  return max;
}

std::string GroupName(
    const ::testing::TestParamInfo<std::tuple<GroupKind, int>>& of) {
  const auto [kind, world] = of.param;
  return absl::StrCat(NameOf(kind), world);
}

class CollectivesTest
    : public ::testing::TestWithParam<std::tuple<GroupKind, int>> {
 protected:
  void SetUp() override { group_ = MakeTestGroup(kind(), world()); }

  GroupKind kind() const { return std::get<0>(GetParam()); }
  int world() const { return std::get<1>(GetParam()); }
  Communicator& end(int rank) { return *group_[rank]; }

  std::vector<std::unique_ptr<Communicator>> group_;
};

INSTANTIATE_TEST_SUITE_P(
    Worlds, CollectivesTest,
    ::testing::Combine(::testing::Values(GroupKind::kLoopback, GroupKind::kGloo,
                                         GroupKind::kSharedMemory),
                       ::testing::Range(1, 6)),
    GroupName);

// Around a slice's alignment, the one-round limit (4,096 elements), a chunk
// (32,768) and its window, and far beyond.
const int64_t kSizes[] = {0,      1,       7,       15,       17,
                          1000,   4096,    4097,    32'768,   32'769,
                          65'537, 131'071, 200'003, 1'000'000};

TEST_P(CollectivesTest, RanksKnowTheirPlace) {
  for (int r = 0; r < world(); ++r) {
    EXPECT_EQ(end(r).rank(), r);
    EXPECT_EQ(end(r).world(), world());
    EXPECT_EQ(end(r).sent_bytes(), 0);
    EXPECT_EQ(end(r).failed_peer(), std::nullopt);
  }
}

TEST_P(CollectivesTest, AllReduceSumGivesEveryRankTheSum) {
  ForEachRank(world(), [&](int rank) {
    for (const int64_t n : kSizes) {
      std::vector<int64_t> data = Values(1, rank, n);
      ASSERT_TRUE(end(rank).AllReduceSum(data.data(), n).ok());
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(data[i], Sum(1, world(), i)) << "n=" << n << " i=" << i;
      }
    }
  });
}

TEST_P(CollectivesTest, AllReduceMaxGivesEveryRankTheLargest) {
  ForEachRank(world(), [&](int rank) {
    for (const int64_t n : {0, 1, 7, 1000, 50'001}) {
      std::vector<int64_t> data = Values(2, rank, n);
      ASSERT_TRUE(end(rank).AllReduceMax(data.data(), n).ok());
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(data[i], Max(2, world(), i)) << "n=" << n << " i=" << i;
      }
    }
  });
}

TEST_P(CollectivesTest, ReduceScatterThenAllGatherIsAnAllReduce) {
  ForEachRank(world(), [&](int rank) {
    for (const int64_t n : kSizes) {
      std::vector<int64_t> data = Values(3, rank, n);
      ASSERT_TRUE(end(rank)
                      .ReduceScatterSum(data.data(), n, ShardSize(n, world()))
                      .ok());
      const FlatRange mine = ShardOf({0, n}, rank, world());
      for (int64_t i = 0; i < n; ++i) {
        if (i >= mine.offset && i < mine.offset + mine.element_count) {
          ASSERT_EQ(data[i], Sum(3, world(), i)) << "n=" << n << " i=" << i;
        } else {
          data[i] = -1;
        }
      }
      ASSERT_TRUE(end(rank).AllGather(data.data(), n, sizeof(int64_t)).ok());
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(data[i], Sum(3, world(), i)) << "n=" << n << " i=" << i;
      }
    }
  });
}

TEST_P(CollectivesTest, AReduceScatterTakesPartsOfAnySize) {
  ForEachRank(world(), [&](int rank) {
    for (const int64_t n : kSizes) {
      const int64_t least = (n + world() - 1) / world();
      for (const int64_t part : {least, least + 1, least + 1000, n + 1}) {
        std::vector<int64_t> data = Values(3, rank, n);
        ASSERT_TRUE(end(rank).ReduceScatterSum(data.data(), n, part).ok());
        const FlatRange mine = PartOf({0, n}, part, rank);
        for (int64_t i = mine.offset; i < mine.offset + mine.element_count;
             ++i) {
          ASSERT_EQ(data[i], Sum(3, world(), i))
              << "n=" << n << " part=" << part << " i=" << i;
        }
      }
    }
  });
}

TEST_P(CollectivesTest, AllGatherTakesElementsOfAnySize) {
  ForEachRank(world(), [&](int rank) {
    for (const int64_t element_bytes : {1, 3, 12, 4096}) {
      const int64_t n = 1607;
      std::string data(n * element_bytes, '?');
      const FlatRange mine = ShardOf({0, n}, rank, world());
      std::fill_n(data.begin() + mine.offset * element_bytes,
                  mine.element_count * element_bytes,
                  static_cast<char>('a' + rank));
      ASSERT_TRUE(end(rank).AllGather(data.data(), n, element_bytes).ok());
      for (int r = 0; r < world(); ++r) {
        const FlatRange theirs = ShardOf({0, n}, r, world());
        const int64_t count = theirs.element_count * element_bytes;
        ASSERT_EQ(data.substr(theirs.offset * element_bytes, count),
                  std::string(count, static_cast<char>('a' + r)));
      }
    }
  });
}

TEST_P(CollectivesTest, BroadcastGivesEveryRankTheRootsBytes) {
  ForEachRank(world(), [&](int rank) {
    for (int root = 0; root < world(); ++root) {
      // Beyond one piece of 4 MiB, and not a multiple of anything.
      for (const int64_t bytes : {0, 1, 7, 1000, 9'000'001}) {
        std::string data(bytes, static_cast<char>('a' + rank));
        ASSERT_TRUE(end(rank).Broadcast(data.data(), bytes, root).ok());
        ASSERT_EQ(data, std::string(bytes, static_cast<char>('a' + root)));
      }
    }
  });
}

TEST_P(CollectivesTest, BarrierLetsNobodyThroughBeforeAllHaveCome) {
  std::atomic<int> arrived = 0;
  ForEachRank(world(), [&](int rank) {
    for (int round = 1; round <= 50; ++round) {
      ++arrived;
      ASSERT_TRUE(end(rank).Barrier().ok());
      EXPECT_GE(arrived, round * world());
    }
  });
}

// A random program of calls, the same on every rank, without pauses between
// them: results of one call must not leak into another.
TEST_P(CollectivesTest, ManyCallsInARowDoNotDisturbEachOther) {
  ForEachRank(world(), [&](int rank) {
    for (uint32_t call = 0; call < 120; ++call) {
      const PhiloxBlock dice = Philox4x32({call, 0, 0, 0}, {7, 7});
      const int64_t n = dice[0] % 3 == 0 ? dice[1] % 80'000 : dice[1] % 200;
      std::vector<int64_t> data = Values(call, rank, n);
      const auto expect_all = [&](auto expected) {
        for (int64_t i = 0; i < n; ++i) {
          ASSERT_EQ(data[i], expected(i)) << "call=" << call << " i=" << i;
        }
      };
      switch (dice[2] % 4) {
        case 0:
          ASSERT_TRUE(end(rank).AllReduceSum(data.data(), n).ok());
          expect_all([&](int64_t i) { return Sum(call, world(), i); });
          break;
        case 1:
          ASSERT_TRUE(end(rank).AllReduceMax(data.data(), n).ok());
          expect_all([&](int64_t i) { return Max(call, world(), i); });
          break;
        case 2: {
          const int root = static_cast<int>(dice[3] % world());
          ASSERT_TRUE(end(rank).Broadcast(data.data(), n * 8, root).ok());
          expect_all([&](int64_t i) { return Value(call, root, i); });
          break;
        }
        case 3:
          ASSERT_TRUE(end(rank).Barrier().ok());
          break;
      }
    }
  });
}

TEST_P(CollectivesTest, WhatIsSentIsWhatThePlanCounts) {
  ForEachRank(world(), [&](int rank) {
    Communicator& c = end(rank);
    int64_t before = 0;
    const auto sent = [&] {
      return c.sent_bytes() - std::exchange(before, c.sent_bytes());
    };
    for (const int64_t n : kSizes) {
      std::vector<int64_t> data(n);
      ASSERT_TRUE(c.AllReduceSum(data.data(), n).ok());
      EXPECT_EQ(sent(), AllReduceBytes(n, rank, world())) << n;
      for (const int64_t part :
           {ShardSize(n, world()), (n + world() - 1) / world()}) {
        ASSERT_TRUE(c.ReduceScatterSum(data.data(), n, part).ok());
        EXPECT_EQ(sent(), ReduceScatterBytes(n, part, rank, world())) << n;
      }
      ASSERT_TRUE(c.AllGather(data.data(), n, 4).ok());
      EXPECT_EQ(sent(), AllGatherBytes(n, 4, rank, world())) << n;
    }
  });
}

TEST_P(CollectivesTest, SentBytesFollowTheFormula) {
  // A multiple of 16 elements for every world here, so that slices are equal.
  const int64_t n = 16 * 60 * 100;
  ForEachRank(world(), [&](int rank) {
    std::vector<int64_t> data(n);
    Communicator& c = end(rank);
    const int64_t slice_bytes = n / world() * 8;

    ASSERT_TRUE(c.AllReduceSum(data.data(), n).ok());
    EXPECT_EQ(c.sent_bytes(), 2 * (world() - 1) * slice_bytes);

    int64_t before = c.sent_bytes();
    ASSERT_TRUE(c.ReduceScatterSum(data.data(), n, n / world()).ok());
    EXPECT_EQ(c.sent_bytes() - before, (world() - 1) * slice_bytes);

    before = c.sent_bytes();
    ASSERT_TRUE(c.AllGather(data.data(), n, 8).ok());
    EXPECT_EQ(c.sent_bytes() - before, (world() - 1) * slice_bytes);

    before = c.sent_bytes();
    ASSERT_TRUE(c.Broadcast(data.data(), 1000, 0).ok());
    EXPECT_EQ(c.sent_bytes() - before, rank == 0 ? 1000 * (world() - 1) : 0);
  });
}

// Starts `call` on all ranks but the last, which never comes, and aborts rank 0
// from another thread.  (A rank that has nothing to wait for may succeed; the
// barrier after it cannot.)
class AbortTest : public CollectivesTest {
 protected:
  void ExpectAbortEnds(const std::function<absl::Status(Communicator&)>& call) {
    if (world() == 1) return;
    const absl::Status why = absl::CancelledError("the job was cancelled");
    std::atomic<int> started = 0;
    std::vector<absl::Status> results(world());
    std::vector<absl::Duration> took(world());
    std::thread aborter([&] {
      while (started < world() - 1) std::this_thread::yield();
      // Long enough to be in the middle of it more often than not.
      absl::SleepFor(absl::Milliseconds(20));
      end(0).Abort(why);
      end(0).Abort(absl::InternalError("the second abort does not count"));
    });
    ForEachRank(world() - 1, [&](int rank) {
      ++started;
      const absl::Time start = absl::Now();
      results[rank] = call(end(rank));
      if (results[rank].ok()) results[rank] = end(rank).Barrier();
      took[rank] = absl::Now() - start;
    });
    aborter.join();

    EXPECT_EQ(results[0], why);
    for (int r = 0; r < world() - 1; ++r) {
      EXPECT_LT(took[r], absl::Seconds(5)) << r;
      if (r == 0) continue;
      EXPECT_EQ(results[r].code(), absl::StatusCode::kAborted) << results[r];
      EXPECT_THAT(std::string(results[r].message()),
                  HasSubstr("rank 0 aborted: the job was cancelled"));
      EXPECT_EQ(end(r).failed_peer(), std::nullopt);
    }
    // And ever after.
    std::vector<int64_t> data(5);
    for (int r = 0; r < world() - 1; ++r) {
      EXPECT_EQ(end(r).AllReduceSum(data.data(), 5), results[r]);
      EXPECT_EQ(end(r).AllReduceMax(data.data(), 0), results[r]);
      EXPECT_EQ(end(r).ReduceScatterSum(data.data(), 5, 5), results[r]);
      EXPECT_EQ(end(r).AllGather(data.data(), 5, 8), results[r]);
      EXPECT_EQ(end(r).Broadcast(data.data(), 5, 0), results[r]);
      EXPECT_EQ(end(r).Barrier(), results[r]);
    }
  }
};

INSTANTIATE_TEST_SUITE_P(
    Worlds, AbortTest,
    ::testing::Combine(::testing::Values(GroupKind::kLoopback, GroupKind::kGloo,
                                         GroupKind::kSharedMemory),
                       ::testing::Values(2, 4)),
    GroupName);

TEST_P(AbortTest, EndsALargeAllReduce) {
  ExpectAbortEnds([](Communicator& c) {
    std::vector<int64_t> data(300'000);
    return c.AllReduceSum(data.data(), 300'000);
  });
}

TEST_P(AbortTest, EndsASmallAllReduce) {
  ExpectAbortEnds([](Communicator& c) {
    std::vector<int64_t> data(30);
    return c.AllReduceMax(data.data(), 30);
  });
}

TEST_P(AbortTest, EndsAReduceScatter) {
  ExpectAbortEnds([](Communicator& c) {
    std::vector<int64_t> data(300'000);
    return c.ReduceScatterSum(data.data(), 300'000, 150'000);
  });
}

TEST_P(AbortTest, EndsAnAllGather) {
  ExpectAbortEnds([](Communicator& c) {
    std::vector<int64_t> data(300'000);
    return c.AllGather(data.data(), 300'000, 8);
  });
}

TEST_P(AbortTest, EndsABroadcastFromTheMissingRank) {
  ExpectAbortEnds([](Communicator& c) {
    std::vector<int64_t> data(300'000);
    return c.Broadcast(data.data(), 300'000 * 8, c.world() - 1);
  });
}

TEST_P(AbortTest, EndsABroadcastToTheMissingRank) {
  ExpectAbortEnds([](Communicator& c) {
    std::vector<int64_t> data(3'000'000);
    return c.Broadcast(data.data(), 3'000'000 * 8, 0);
  });
}

TEST_P(AbortTest, EndsABarrier) {
  ExpectAbortEnds([](Communicator& c) { return c.Barrier(); });
}

// In the middle of traffic, at many moments: memory is freed as soon as a call
// returns, so that a sanitizer sees what still touches it.
TEST_P(AbortTest, AtAnyMomentLeavesTheMemoryAlone) {
  for (int moment = 0; moment < 12; ++moment) {
    group_ = MakeTestGroup(kind(), world());
    std::thread aborter([&] {
      absl::SleepFor(absl::Microseconds(700 * moment));
      end(world() - 1).Abort(absl::CancelledError("enough"));
    });
    ForEachRank(world(), [&](int rank) {
      absl::Status status;
      while (status.ok()) {
        std::vector<int64_t> data(100'000, rank);
        status = end(rank).AllReduceSum(data.data(), 100'000);
        if (status.ok()) {
          EXPECT_EQ(data[99'999], world() * (world() - 1) / 2);
        }
      }
    });
    aborter.join();
  }
}

TEST_P(AbortTest, ARankThatLeavesFailsWhatStillNeedsIt) {
  group_[world() - 1] = nullptr;

  ForEachRank(world() - 1, [&](int rank) {
    std::vector<int64_t> data(5);
    const absl::Status status = end(rank).AllReduceSum(data.data(), 5);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("has left"));
  });
}

// A stop ends in a barrier, and each rank leaves once it is through.
TEST_P(AbortTest, LeavingAfterABarrierDisturbsNobodyStillInIt) {
  for (int round = 0; round < 15; ++round) {
    group_ = MakeTestGroup(kind(), world());
    ForEachRank(world(), [&](int rank) {
      EXPECT_EQ(end(rank).Barrier(), absl::OkStatus());
      group_[rank] = nullptr;
    });
  }
}

}  // namespace
}  // namespace lockstep
