#include "worker/link/device_lock.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(60);

// Of this test process alone: others may run at the same time.
std::string Key(const std::string& name) {
  return absl::StrCat(name, " ", getpid());
}

void NoWait(const std::string& reason) { FAIL() << reason; }

TEST(DeviceLockTest, IsHadAtOnceWhenFreeAndAgainOnceItWasGivenBack) {
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(
        DeviceLock::Acquire(Key("free"), kLong, RealClock(), NoWait).ok());
  }
}

TEST(DeviceLockTest, KeysDoNotDisturbEachOther) {
  const auto a = DeviceLock::Acquire(Key("a"), kLong, RealClock(), NoWait);
  const auto b = DeviceLock::Acquire(Key("b"), kLong, RealClock(), NoWait);
  EXPECT_TRUE(a.ok() && b.ok());
}

TEST(DeviceLockTest, ALongKeyIsAsGoodAsAShortOne) {
  const std::string key(10'000, 'k');
  const auto a =
      DeviceLock::Acquire(Key(key + "a"), kLong, RealClock(), NoWait);
  const auto b =
      DeviceLock::Acquire(Key(key + "b"), kLong, RealClock(), NoWait);
  EXPECT_TRUE(a.ok() && b.ok());
}

TEST(DeviceLockTest, GivesUpWithTheNameOfTheHolder) {
  const auto held =
      DeviceLock::Acquire(Key("held"), kLong, RealClock(), NoWait);
  ASSERT_TRUE(held.ok());

  int waits = 0;
  const auto second =
      DeviceLock::Acquire(Key("held"), absl::Milliseconds(20), RealClock(),
                          [&](const std::string&) { ++waits; });

  EXPECT_EQ(second.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr(absl::StrCat("process ", getpid())));
  EXPECT_EQ(waits, 1);
}

TEST(DeviceLockTest, TheEndOfTheHolderHoweverItComesWakesTheOneWhoWaits) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const std::string key = Key("dies");
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto lock =
        DeviceLock::Acquire(key, kLong, RealClock(), [](const std::string&) {});
    if (!lock.ok() || write(ready[1], "x", 1) != 1) _exit(1);
    for (;;) pause();
  }
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);

  std::string reason;
  const auto lock =
      DeviceLock::Acquire(key, kLong, RealClock(), [&](const std::string& r) {
        reason = r;
        kill(child, SIGKILL);
      });

  EXPECT_TRUE(lock.ok()) << lock.status();
  EXPECT_THAT(reason, HasSubstr(absl::StrCat("process ", child)));
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  close(ready[0]);
  close(ready[1]);
}

TEST(DeviceLockTest, OfManyWhoWaitOneAtATimeHasIt) {
  auto first = DeviceLock::Acquire(Key("many"), kLong, RealClock(), NoWait);
  ASSERT_TRUE(first.ok());
  std::atomic<int> holders = 0;
  std::atomic<int> most = 0;
  std::atomic<int> had = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      const auto lock = DeviceLock::Acquire(Key("many"), kLong, RealClock(),
                                            [](const std::string&) {});
      if (!lock.ok()) return;
      const int now = ++holders;
      if (now > most) most = now;
      std::this_thread::yield();
      ++had;
      --holders;
    });
  }

  { const auto gone = std::move(first); }
  for (std::thread& t : threads) t.join();

  EXPECT_EQ(had, 8);
  EXPECT_EQ(most, 1);
}

}  // namespace
}  // namespace lockstep
