// Replay a failure with TEST_SEED=<n>, which also prints every event; go
// further than usual with TEST_SEED_COUNT=<n>.

#include "tests/simulation/simulation.h"

#include <cstdlib>
#include <iostream>

#include "gtest/gtest.h"

namespace lockstep::simulation {
namespace {

Options OptionsOf(uint64_t seed) {
  Options options;
  options.seed = seed;
  options.worker_count = 1 + static_cast<int>(seed % 5);
  options.job_count = 2 + static_cast<int>(seed / 5 % 7);
  options.class_count = seed % 3 == 0 ? 2 : 1;
  options.finished_job_max = seed % 4 == 0 ? 2 : 10'000;
  return options;
}

// What is counted, by name.
struct Counter {
  const char* name;
  int64_t Result::*value;
};
constexpr Counter kCounters[] = {
    {"events", &Result::events},
    {"generations", &Result::generations},
    {"coordinator_crashes", &Result::coordinator_crashes},
    {"worker_crashes", &Result::worker_crashes},
    {"leaves", &Result::leaves},
    {"trainer_deaths", &Result::trainer_deaths},
    {"broken_streams", &Result::broken_streams},
    {"half_open", &Result::half_open},
    {"duplicates", &Result::duplicates},
    {"cut_off", &Result::cut_off},
    {"completed", &Result::completed},
    {"cancelled", &Result::cancelled},
    {"waiting", &Result::waiting},
    {"erased", &Result::erased},
};

void RunSeed(uint64_t seed, bool log, Result& total) {
  Options options = OptionsOf(seed);
  options.log = log;
  const Result result = RunSimulation(options);
  for (const std::string& violation : result.violations) {
    ADD_FAILURE() << "TEST_SEED=" << seed << " workers=" << options.worker_count
                  << " classes=" << options.class_count
                  << " jobs=" << options.job_count << ": " << violation;
  }
  for (const Counter& counter : kCounters) {
    total.*counter.value += result.*counter.value;
  }
}

TEST(SimulationTest, IsSafeThroughFaultsAndEndsWithoutThem) {
  Result total;
  if (const char* env = std::getenv("TEST_SEED")) {
    RunSeed(std::strtoull(env, nullptr, 10), /*log=*/true, total);
  } else {
    const char* count = std::getenv("TEST_SEED_COUNT");
    const uint64_t last = count ? std::strtoull(count, nullptr, 10) : 2000;
    for (uint64_t seed = 1; seed <= last && !HasFailure(); ++seed) {
      RunSeed(seed, /*log=*/false, total);
    }
    // Everything that a run is about did happen.
    for (const Counter& counter : kCounters) {
      EXPECT_GE(total.*counter.value, static_cast<int64_t>(last / 20))
          << counter.name;
    }
  }
  for (const Counter& counter : kCounters) {
    std::cout << counter.name << "=" << total.*counter.value << " ";
  }
  std::cout << "\n";
}

TEST(SimulationTest, IsAFunctionOfItsSeed) {
  const Result a = RunSimulation(OptionsOf(7));
  const Result b = RunSimulation(OptionsOf(7));
  const Result c = RunSimulation(OptionsOf(12));
  EXPECT_EQ(a.events, b.events);
  EXPECT_EQ(a.generations, b.generations);
  EXPECT_NE(a.events, c.events);
}

}  // namespace
}  // namespace lockstep::simulation
