// The real cores of a coordinator and its workers over a virtual clock and a
// network that loses, delays and repeats, with crashes of every part.
//
// One run: a phase with faults, in which safety is checked after every event,
// then a phase without, at whose end every job must have ended that can.
// Everything is a function of the seed; ties of time are broken by sequence.
#ifndef TESTS_SIMULATION_SIMULATION_H_
#define TESTS_SIMULATION_SIMULATION_H_

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::simulation {

struct Options {
  uint64_t seed = 1;
  int worker_count = 4;
  int class_count = 1;  // Numeric classes; workers have them in turn.
  int job_count = 5;
  int finished_job_max = 10'000;
  int fault_seconds = 60;      // Of virtual time.
  int recovery_seconds = 900;  // Ditto: by then every job must have ended.
  bool log = false;            // Print every event.
};

struct Result {
  std::vector<std::string> violations;  // Empty when all is well.
  // How often the faults that a run is about occurred.
  int64_t coordinator_crashes = 0;
  int64_t worker_crashes = 0;
  int64_t trainer_deaths = 0;
  int64_t broken_streams = 0;
  int64_t half_open = 0;   // Streams that broke without a word.
  int64_t leaves = 0;      // Workers that were stopped on purpose.
  int64_t duplicates = 0;  // Messages that came again on an ended stream.
  int64_t generations = 0;
  int64_t cut_off = 0;
  int64_t completed = 0;
  int64_t cancelled = 0;
  int64_t waiting = 0;  // Jobs that need more workers than there are.
  int64_t erased = 0;   // Jobs that were forgotten.
  int64_t events = 0;
};

Result RunSimulation(const Options& options);

}  // namespace lockstep::simulation

#endif  // TESTS_SIMULATION_SIMULATION_H_
