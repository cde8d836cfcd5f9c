// Replay a failure with TEST_SEED=<n>, which also prints every event; go further
// than usual with TEST_SEED_COUNT=<n>.

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
  options.job_count = 2 + static_cast<int>(seed / 5 % 5);
  return options;
}

void RunSeed(uint64_t seed, bool log, Result& total) {
  Options options = OptionsOf(seed);
  options.log = log;
  const Result result = RunSimulation(options);
  for (const std::string& violation : result.violations) {
    ADD_FAILURE() << "TEST_SEED=" << seed << " workers=" << options.worker_count
                  << " jobs=" << options.job_count << ": " << violation;
  }
  total.coordinator_crashes += result.coordinator_crashes;
  total.worker_crashes += result.worker_crashes;
  total.trainer_deaths += result.trainer_deaths;
  total.broken_streams += result.broken_streams;
  total.generations += result.generations;
  total.cut_off += result.cut_off;
  total.completed += result.completed;
  total.cancelled += result.cancelled;
  total.events += result.events;
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
    // The faults did happen, and jobs ended in spite of them.
    EXPECT_GT(total.coordinator_crashes, 1000);
    EXPECT_GT(total.worker_crashes, 1000);
    EXPECT_GT(total.trainer_deaths, 1000);
    EXPECT_GT(total.broken_streams, 1000);
    EXPECT_GT(total.cut_off, 10);
    EXPECT_GT(total.completed, 1000);
    EXPECT_GT(total.cancelled, 100);
  }
  std::cout << "events=" << total.events << " generations=" << total.generations
            << " coordinator_crashes=" << total.coordinator_crashes
            << " worker_crashes=" << total.worker_crashes
            << " trainer_deaths=" << total.trainer_deaths
            << " broken_streams=" << total.broken_streams
            << " cut_off=" << total.cut_off << " completed=" << total.completed
            << " cancelled=" << total.cancelled << "\n";
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
