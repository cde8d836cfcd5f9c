#include <functional>
#include <optional>
#include <thread>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/comm/group_listener.h"
#include "worker/comm/test_group.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using Listener = std::unique_ptr<GroupListener>;

Listener MustListen(int rank, int world, GlooOptions tcp = {},
                    Collectives collectives = Collectives::kAuto) {
  auto listener = GroupListener::Listen(
      rank, world, {.tcp = tcp, .collectives = collectives}, RealClock());
  EXPECT_TRUE(listener.ok()) << listener.status();
  return *std::move(listener);
}

std::vector<std::string> AddressesFor(int rank,
                                      const std::vector<Listener>& listeners) {
  std::vector<std::string> addresses;
  for (const Listener& l : listeners) {
    addresses.push_back(l->addresses()[rank]);
  }
  return addresses;
}

TEST(GroupConnectTest, BadArgumentsAreRefusedWithTheirValues) {
  const auto refused = [](int rank, int world, const GlooOptions& tcp) {
    const auto listener =
        GroupListener::Listen(rank, world, {.tcp = tcp}, RealClock());
    EXPECT_EQ(listener.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(listener.status().message());
  };

  EXPECT_THAT(refused(2, 2, {}), HasSubstr("rank=2 world=2"));
  EXPECT_THAT(refused(-1, 2, {}), HasSubstr("rank=-1"));
  EXPECT_THAT(refused(0, 2, {.timeout = absl::ZeroDuration()}),
              HasSubstr("timeout=0"));
  EXPECT_THAT(refused(0, 2, {.host = "localhost"}), HasSubstr("localhost"));
  EXPECT_THAT(refused(0, 2, {.session = std::string(500, 'x')}),
              HasSubstr("500"));
}

TEST(GroupConnectTest, AnAddressOfAnotherHostCannotBeListenedOn) {
  const auto listener =
      GroupListener::Listen(0, 2, {.tcp = {.host = "192.0.2.1"}}, RealClock());

  EXPECT_EQ(listener.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(listener.status().message()), HasSubstr("192.0.2.1"));
}

TEST(GroupConnectTest, MalformedAddressesAreRefused) {
  Listener listener = MustListen(0, 2);
  const Instant deadline = RealClock().Now() + absl::Seconds(5);

  EXPECT_EQ(listener->Connect({""}, deadline).status().code(),
            absl::StatusCode::kInvalidArgument);
  const auto status = listener->Connect({"", "nonsense"}, deadline).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1"));
}

// Whichever side dials: the rank that never calls Connect accepts by itself, so
// that it is missed at the greeting.
TEST(GroupConnectTest, ARankThatDoesNotComeIsNamedAtTheDeadline) {
  std::vector<Listener> listeners;
  for (int r = 0; r < 3; ++r) listeners.push_back(MustListen(r, 3));
  std::vector<absl::Status> results(2);

  const absl::Time start = absl::Now();
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      results[r] = listeners[r]
                       ->Connect(AddressesFor(r, listeners),
                                 RealClock().Now() + absl::Milliseconds(300))
                       .status();
    });
  }
  for (std::thread& t : threads) t.join();

  EXPECT_GE(absl::Now() - start, absl::Milliseconds(290));
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  for (const absl::Status& status : results) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_THAT(
      std::string(results[0].message()) + std::string(results[1].message()),
      HasSubstr("rank 2 was silent"));
}

TEST(GroupConnectTest, ADeadListenerIsRefusedOrMissedByTheDeadline) {
  std::vector<Listener> listeners;
  for (int r = 0; r < 2; ++r) listeners.push_back(MustListen(r, 2));
  const auto addresses = AddressesFor(0, listeners);
  listeners[1] = nullptr;

  const absl::Time start = absl::Now();
  const auto status =
      listeners[0]
          ->Connect(addresses, RealClock().Now() + absl::Milliseconds(300))
          .status();

  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1"));
}

TEST(GroupConnectTest, AbortEndsConnectBeforeAndWhileItWaits) {
  for (const bool before : {true, false}) {
    std::vector<Listener> listeners;
    for (int r = 0; r < 2; ++r) listeners.push_back(MustListen(r, 2));
    const absl::Status why = absl::CancelledError("no longer wanted");
    if (before) listeners[0]->Abort(why);
    std::thread aborter([&] {
      absl::SleepFor(absl::Milliseconds(50));
      listeners[0]->Abort(why);
    });

    const absl::Time start = absl::Now();
    const auto status = listeners[0]
                            ->Connect(AddressesFor(0, listeners),
                                      RealClock().Now() + absl::Minutes(5))
                            .status();
    aborter.join();

    EXPECT_EQ(status, why);
    EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  }
}

TEST(GroupConnectTest, AnotherSessionIsRefusedAndBothAreNamed) {
  std::vector<Listener> listeners;
  listeners.push_back(MustListen(0, 2, {.session = "jobs/a generation 7"}));
  listeners.push_back(MustListen(1, 2, {.session = "jobs/a generation 6"}));
  absl::Status other;
  std::thread thread([&] {
    other = listeners[1]
                ->Connect(AddressesFor(1, listeners),
                          RealClock().Now() + absl::Seconds(5))
                .status();
  });

  const auto status = listeners[0]
                          ->Connect(AddressesFor(0, listeners),
                                    RealClock().Now() + absl::Seconds(5))
                          .status();
  thread.join();

  EXPECT_FALSE(other.ok());
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("generation 7"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("generation 6"));
}

class GroupConnectKindTest : public ::testing::TestWithParam<GroupKind> {};

INSTANTIATE_TEST_SUITE_P(Kinds, GroupConnectKindTest,
                         ::testing::ValuesIn(kProcessGroupKinds),
                         [](const auto& of) { return NameOf(of.param); });

TEST_P(GroupConnectKindTest, AnAbortOfTheListenerReachesItsCommunicator) {
  std::vector<Listener> listeners;
  for (int r = 0; r < 2; ++r) {
    listeners.push_back(MustListen(r, 2, {}, CollectivesOf(GetParam())));
  }
  std::unique_ptr<Communicator> ends[2];
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      auto end = listeners[r]->Connect(AddressesFor(r, listeners),
                                       RealClock().Now() + absl::Seconds(30));
      ASSERT_TRUE(end.ok()) << end.status();
      ends[r] = *std::move(end);
    });
  }
  for (std::thread& t : threads) t.join();
  const absl::Status why = absl::CancelledError("stop");

  listeners[0]->Abort(why);

  EXPECT_EQ(ends[0]->Barrier(), why);
  EXPECT_EQ(ends[1]->Barrier().code(), absl::StatusCode::kAborted);
}

// A generous deadline for connecting does not delay the time-out after it.
TEST_P(GroupConnectKindTest, TheTimeoutHoldsFromTheFirstCollectiveOn) {
  std::vector<Listener> listeners;
  for (int r = 0; r < 2; ++r) {
    listeners.push_back(MustListen(r, 2, {.timeout = absl::Milliseconds(300)},
                                   CollectivesOf(GetParam())));
  }
  std::unique_ptr<Communicator> ends[2];
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      auto end = listeners[r]->Connect(AddressesFor(r, listeners),
                                       RealClock().Now() + absl::Minutes(5));
      ASSERT_TRUE(end.ok()) << end.status();
      ends[r] = *std::move(end);
    });
  }
  for (std::thread& t : threads) t.join();

  const absl::Time start = absl::Now();
  const absl::Status status = ends[0]->Barrier();

  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("rank 1 was silent for 300ms in Barrier"));
  EXPECT_EQ(ends[0]->failed_peer(), 1);
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(290));
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  // The one at fault learns what the others think of it.
  const absl::Status other = ends[1]->Barrier();
  EXPECT_EQ(other.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(other.message()),
              HasSubstr("rank 0 reports: rank 1 was silent"));
}

// What came of connecting, entry i for rank i.
struct Connected {
  std::vector<absl::Status> statuses;
  std::vector<absl::Status> shared_memory;
  std::vector<std::optional<int>> failed_peers;
};

// Connects ranks that were told to use these ways, and reduces once.  `tamper`
// changes what rank 0 is told of the others' addresses.
Connected ConnectAll(const std::vector<Collectives>& ways,
                     const std::function<void(std::string&)>& tamper = {}) {
  const int world = static_cast<int>(ways.size());
  std::vector<Listener> listeners;
  for (int r = 0; r < world; ++r) {
    listeners.push_back(MustListen(r, world, {}, ways[r]));
  }
  Connected all;
  all.statuses.resize(world);
  all.shared_memory.resize(world);
  all.failed_peers.resize(world);
  ForEachRank(world, [&](int r) {
    std::vector<std::string> addresses = AddressesFor(r, listeners);
    if (r == 0 && tamper) {
      for (int peer = 1; peer < world; ++peer) tamper(addresses[peer]);
    }
    auto end =
        listeners[r]->Connect(addresses, RealClock().Now() + absl::Seconds(60));
    all.statuses[r] = end.status();
    all.shared_memory[r] = listeners[r]->shared_memory();
    all.failed_peers[r] = listeners[r]->failed_peer();
    if (!end.ok()) return;
    int64_t data = r;
    EXPECT_EQ((*end)->AllReduceSum(&data, 1), absl::OkStatus());
    EXPECT_EQ(data, world * (world - 1) / 2);
    EXPECT_EQ((*end)->Barrier(), absl::OkStatus());
  });
  return all;
}

void ExpectTcpBecause(const Connected& all, const std::string& why) {
  for (const absl::Status& status : all.statuses) {
    EXPECT_EQ(status, absl::OkStatus());
  }
  for (const absl::Status& status : all.shared_memory) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    EXPECT_EQ(status, all.shared_memory[0]);
  }
}

TEST(SharingTest, RanksOfOneHostShareMemory) {
  for (const int world : {1, 2, 5}) {
    const Connected all =
        ConnectAll(std::vector<Collectives>(world, Collectives::kAuto));

    for (int r = 0; r < world; ++r) {
      EXPECT_EQ(all.statuses[r], absl::OkStatus());
      EXPECT_EQ(all.shared_memory[r], absl::OkStatus());
    }
  }
}

TEST(SharingTest, OneRankThatIsToldToUseTcpMakesAllUseIt) {
  ExpectTcpBecause(
      ConnectAll({Collectives::kAuto, Collectives::kTcp, Collectives::kAuto}),
      "rank 1: it is told to use TCP");
}

TEST(SharingTest, ARankThatInsistsIsRefusedByAllAndTheOtherIsNamed) {
  const Connected all = ConnectAll(
      {Collectives::kSharedMemory, Collectives::kAuto, Collectives::kTcp});

  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(all.statuses[r].code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(all.statuses[r].message()),
                ::testing::AllOf(HasSubstr("rank 0 is told to use shared"),
                                 HasSubstr("rank 2: it is told to use TCP")));
    EXPECT_EQ(all.failed_peers[r], std::nullopt);
  }
}

TEST(SharingTest, ANonceThatIsNotTheOthersIsNoProof) {
  ExpectTcpBecause(
      ConnectAll({Collectives::kAuto, Collectives::kAuto, Collectives::kAuto},
                 [](std::string& address) { address.back() ^= 1; }),
      "rank 1: rank 0 is not reachable through shared memory: it has not come "
      "to this rank's socket with its nonce; turned away was one: it does not "
      "know the nonce");
}

// As when the other is on another host, or in another network namespace.
TEST(SharingTest, ASocketThatIsNotHereMeansTcp) {
  ExpectTcpBecause(
      ConnectAll({Collectives::kAuto, Collectives::kAuto},
                 [](std::string& address) {
                   char& digit = address[address.rfind("lockstep-") + 9];
                   digit = digit == '0' ? '1' : '0';
                 }),
      "rank 0: rank 1 is not reachable through shared memory: its socket is "
      "not here");
}

}  // namespace
}  // namespace lockstep
