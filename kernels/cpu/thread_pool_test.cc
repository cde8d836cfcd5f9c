#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>
#include <vector>

namespace lockstep::kernels {
namespace {

TEST(ThreadPoolTest, EveryIndexRunsOnce) {
  for (const int thread_count : {1, 2, 3, 8}) {
    ThreadPool pool(thread_count);
    EXPECT_EQ(pool.thread_count(), thread_count);
    for (const int64_t count : {0, 1, 2, 3, 7, 1000}) {
      // Many loops: a late thread of one must not run an index of the next.
      for (int repeat = 0; repeat < 200; ++repeat) {
        std::vector<std::atomic<int>> runs(count);
        pool.ParallelFor(count, [&](int64_t i, int) { ++runs[i]; });
        for (int64_t i = 0; i < count; ++i) ASSERT_EQ(runs[i], 1);
      }
    }
  }
}

TEST(ThreadPoolTest, OneThreadCreatesNone) {
  ThreadPool pool(1);
  std::set<std::thread::id> ids;

  pool.ParallelFor(100, [&](int64_t, int thread) {
    EXPECT_EQ(thread, 0);
    ids.insert(std::this_thread::get_id());
  });

  EXPECT_EQ(ids, std::set<std::thread::id>{std::this_thread::get_id()});
}

TEST(ThreadPoolTest, ThreadsOfALoopHaveDifferentNumbers) {
  ThreadPool pool(3);
  std::vector<std::atomic<bool>> inside(3);
  std::atomic<int> clashes{0};
  for (int repeat = 0; repeat < 100; ++repeat) {
    pool.ParallelFor(50, [&](int64_t, int thread) {
      if (inside[thread].exchange(true)) ++clashes;
      std::this_thread::yield();
      inside[thread] = false;
    });
  }
  EXPECT_EQ(clashes, 0);
}

TEST(ThreadPoolTest, AllThreadsHelp) {
  ThreadPool pool(3);
  // Ends only if three threads are inside at once.
  std::atomic<int> arrived{0};
  pool.ParallelFor(3, [&](int64_t, int) {
    ++arrived;
    while (arrived < 3) std::this_thread::yield();
  });
  EXPECT_EQ(arrived, 3);
}

TEST(ThreadPoolTest, ALoopEndsWhenItsLastTaskHas) {
  ThreadPool pool(2);
  std::atomic<int> arrived{0};
  std::atomic<bool> ended{false};
  pool.ParallelFor(2, [&](int64_t, int thread) {
    ++arrived;
    while (arrived < 2) std::this_thread::yield();
    if (thread == 0) return;
    // Longer than the caller looks before it sleeps.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ended = true;
  });
  EXPECT_TRUE(ended);
}

TEST(ThreadPoolTest, LoopsFromSeveralThreadsAndNestedOnesEnd) {
  ThreadPool pool(2);
  std::atomic<int64_t> sum{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 3; ++c) {
    callers.emplace_back([&] {
      for (int repeat = 0; repeat < 100; ++repeat) {
        pool.ParallelFor(10, [&](int64_t, int) {
          pool.ParallelFor(5, [&](int64_t i, int) { sum += i; });
        });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum, 3 * 100 * 10 * 10);
}

TEST(ThreadPoolTest, SleepersWake) {
  ThreadPool pool(2);
  for (int repeat = 0; repeat < 3; ++repeat) {
    // Longer than a thread looks for work before it sleeps; a failure would be
    // a loop that never ends, never one that is slow.
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::atomic<int> arrived{0};
    pool.ParallelFor(2, [&](int64_t, int) {
      ++arrived;
      while (arrived < 2) std::this_thread::yield();
    });
    EXPECT_EQ(arrived, 2);
  }
}

}  // namespace
}  // namespace lockstep::kernels
