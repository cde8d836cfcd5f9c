// Real processes that die, hang or exit in the middle of a collective.

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <tuple>

#include "absl/strings/str_cat.h"
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

constexpr int kWorld = 4;
constexpr int64_t kLarge = 400'000;

// What a surviving rank tells its parent.
struct Report {
  int32_t ready = 0;  // 1: it is in its loop of collectives.
  int32_t code = 0;
  int32_t failed_peer = -1;
  int64_t took_ms = 0;  // From the start of the call that failed.
  char again = 'n';     // 'y': the next call gave the same error.
  char message[400] = "";
};

// Processes 0 to kWorld - 1, each with a pipe of addresses in and of addresses
// and reports out.
class GroupDeathTest : public ::testing::Test {
 protected:
  struct Child {
    pid_t pid = -1;
    int in = -1;   // The parent writes.
    int out = -1;  // The parent reads.
  };

  // Forks before this process has a thread.
  void Fork(GroupKind kind, absl::Duration timeout, int64_t n) {
    for (int rank = 0; rank < kWorld; ++rank) {
      int in[2], out[2];
      ASSERT_EQ(pipe2(in, O_CLOEXEC), 0);
      ASSERT_EQ(pipe2(out, O_CLOEXEC), 0);
      const pid_t pid = fork();
      ASSERT_GE(pid, 0);
      if (pid == 0) {
        close(in[1]);
        close(out[0]);
        RunChild(rank, kind, timeout, n, in[0], out[1]);
        _exit(0);
      }
      close(in[0]);
      close(out[1]);
      children_[rank] = {pid, in[1], out[0]};
    }
    std::string all[kWorld];
    for (int rank = 0; rank < kWorld; ++rank) {
      for (int peer = 0; peer < kWorld; ++peer) {
        char address[kAddressBytes];
        ASSERT_TRUE(ReadAll(children_[rank].out, address, kAddressBytes));
        all[peer].append(address, kAddressBytes);
      }
    }
    for (int rank = 0; rank < kWorld; ++rank) {
      ASSERT_EQ(write(children_[rank].in, all[rank].data(), all[rank].size()),
                static_cast<ssize_t>(all[rank].size()));
    }
  }

  // Until all are in their loops.
  void Start(GroupKind kind, absl::Duration timeout, int64_t n) {
    Fork(kind, timeout, n);
    if (HasFatalFailure()) return;
    for (int rank = 0; rank < kWorld; ++rank) {
      Report report;
      ASSERT_TRUE(ReadAll(children_[rank].out, &report, sizeof(report)));
      ASSERT_EQ(report.ready, 1) << report.message;
    }
  }

  void TearDown() override {
    for (Child& c : children_) {
      if (c.pid < 0) continue;
      kill(c.pid, SIGKILL);
      waitpid(c.pid, nullptr, 0);
      close(c.in);
      close(c.out);
    }
  }

  Report ReportOf(int rank) {
    Report report;
    EXPECT_TRUE(ReadAll(children_[rank].out, &report, sizeof(report)))
        << "rank " << rank << " gave no report";
    return report;
  }

  Child children_[kWorld];

 private:
  // Two bytes of length and the address.
  static constexpr int kAddressBytes = 1024;

  static bool ReadAll(int fd, void* to, size_t bytes) {
    char* at = static_cast<char*>(to);
    while (bytes > 0) {
      pollfd p = {fd, POLLIN, 0};
      if (poll(&p, 1, 60'000) != 1) return false;
      const ssize_t n = read(fd, at, bytes);
      if (n <= 0) return false;
      at += n;
      bytes -= n;
    }
    return true;
  }

  static void Send(int fd, const Report& report) {
    if (write(fd, &report, sizeof(report)) != sizeof(report)) _exit(3);
  }

  static void RunChild(int rank, GroupKind kind, absl::Duration timeout,
                       int64_t n, int in, int out) {
    auto listener = GroupListener::Listen(
        rank, kWorld,
        {.tcp = {.timeout = timeout}, .collectives = CollectivesOf(kind)},
        RealClock());
    if (!listener.ok()) _exit(4);
    for (const std::string& address : (*listener)->addresses()) {
      char block[kAddressBytes] = "";
      const auto size = static_cast<uint16_t>(address.size());
      if (size > kAddressBytes - sizeof(size)) _exit(9);
      std::memcpy(block, &size, sizeof(size));
      std::memcpy(block + sizeof(size), address.data(), size);
      if (write(out, block, kAddressBytes) != kAddressBytes) _exit(5);
    }
    std::vector<std::string> peers;
    for (int peer = 0; peer < kWorld; ++peer) {
      char block[kAddressBytes];
      if (!ReadAll(in, block, kAddressBytes)) _exit(6);
      uint16_t size;
      std::memcpy(&size, block, sizeof(size));
      peers.emplace_back(block + sizeof(size), size);
    }
    const Instant connecting = RealClock().Now();
    auto end = (*listener)->Connect(peers, connecting + absl::Seconds(60));
    Report report;
    report.ready = 1;
    if (!end.ok()) {
      report.ready = 0;
      report.code = static_cast<int>(end.status().code());
      report.failed_peer = (*listener)->failed_peer().value_or(-1);
      report.took_ms =
          absl::ToInt64Milliseconds(RealClock().Now() - connecting);
      std::snprintf(report.message, sizeof(report.message), "%s",
                    end.status().ToString().c_str());
      Send(out, report);
      listener->reset();
      _exit(7);
    }
    std::vector<int64_t> data(n);
    bool announced = false;
    absl::Status status;
    Instant start;
    while (status.ok()) {
      start = RealClock().Now();
      std::fill(data.begin(), data.end(), rank);
      status = (*end)->AllReduceSum(data.data(), n);
      if (status.ok() && data[n - 1] != kWorld * (kWorld - 1) / 2) _exit(8);
      if (!announced) Send(out, report);
      announced = true;
    }
    report.took_ms = absl::ToInt64Milliseconds(RealClock().Now() - start);
    report.code = static_cast<int>(status.code());
    report.failed_peer = (*end)->failed_peer().value_or(-1);
    report.again = (*end)->Barrier() == status ? 'y' : 'n';
    std::snprintf(report.message, sizeof(report.message), "%s",
                  std::string(status.message()).c_str());
    Send(out, report);
    // Gone at once: the others must still blame the right rank.
    end->reset();
  }
};

class KillTest
    : public GroupDeathTest,
      public ::testing::WithParamInterface<std::tuple<GroupKind, int64_t>> {
 protected:
  GroupKind kind() const { return std::get<0>(GetParam()); }
  int64_t n() const { return std::get<1>(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(
    Sizes, KillTest,
    ::testing::Combine(::testing::ValuesIn(kProcessGroupKinds),
                       ::testing::Values(10, kLarge)),
    [](const auto& of) {
      return absl::StrCat(NameOf(std::get<0>(of.param)), "_",
                          std::get<1>(of.param));
    });

TEST_P(KillTest, AKilledRankIsNamedByAllAtOnce) {
  Start(kind(), absl::Minutes(5), n());
  absl::SleepFor(absl::Milliseconds(50));  // Somewhere in the traffic.

  const absl::Time killed = absl::Now();
  kill(children_[2].pid, SIGKILL);

  for (const int rank : {0, 1, 3}) {
    const Report report = ReportOf(rank);
    EXPECT_EQ(static_cast<absl::StatusCode>(report.code),
              absl::StatusCode::kUnavailable)
        << report.message;
    EXPECT_EQ(report.failed_peer, 2)
        << "rank " << rank << ": " << report.message;
    EXPECT_THAT(report.message, HasSubstr("rank 2"));
    EXPECT_EQ(report.again, 'y');
  }
  const absl::Duration took = absl::Now() - killed;
  EXPECT_LT(took, absl::Seconds(10));
  RecordProperty("took_ms", static_cast<int>(absl::ToInt64Milliseconds(took)));
}

TEST_P(KillTest, AStoppedRankIsNamedByAllAtTheTimeout) {
  Start(kind(), absl::Milliseconds(700), n());

  kill(children_[1].pid, SIGSTOP);

  for (const int rank : {0, 2, 3}) {
    const Report report = ReportOf(rank);
    EXPECT_EQ(static_cast<absl::StatusCode>(report.code),
              absl::StatusCode::kUnavailable)
        << report.message;
    EXPECT_EQ(report.failed_peer, 1)
        << "rank " << rank << ": " << report.message;
    EXPECT_GE(report.took_ms, 500);
    EXPECT_LT(report.took_ms, 10'000);
    EXPECT_EQ(report.again, 'y');
  }
}

// From when its connections are made, through the trial of shared memory, to
// the first collectives.
class ConnectingKillTest : public GroupDeathTest,
                           public ::testing::WithParamInterface<int> {
 protected:
  // Returns once the child watches its connections.
  void AwaitConnections(int rank) {
    const std::string tasks =
        absl::StrCat("/proc/", children_[rank].pid, "/task");
    while (true) {
      std::error_code gone;
      for (const auto& task :
           std::filesystem::directory_iterator(tasks, gone)) {
        std::string name;
        std::ifstream(task.path() / "comm") >> name;
        if (name == "ls-comm-watch") return;
      }
      ASSERT_FALSE(gone) << gone.message();
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Moments, ConnectingKillTest, ::testing::Range(0, 16));

TEST_P(ConnectingKillTest, ADeathWhileMemoryIsTriedEndsAllOthersToo) {
  Fork(GroupKind::kSharedMemory, absl::Minutes(5), 10);
  AwaitConnections(2);
  absl::SleepFor(absl::Microseconds(50 * GetParam()));

  kill(children_[2].pid, SIGKILL);

  for (const int rank : {0, 1, 3}) {
    Report report = ReportOf(rank);
    if (report.ready == 1) report = ReportOf(rank);
    EXPECT_EQ(static_cast<absl::StatusCode>(report.code),
              absl::StatusCode::kUnavailable)
        << report.message;
    EXPECT_LT(report.took_ms, 10'000);
    EXPECT_EQ(report.failed_peer, 2)
        << "rank " << rank << ": " << report.message;
  }
}

}  // namespace
}  // namespace lockstep
