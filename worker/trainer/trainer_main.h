// The trainer process: takes generations from its agent, one at a time.
#ifndef WORKER_TRAINER_TRAINER_MAIN_H_
#define WORKER_TRAINER_TRAINER_MAIN_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "common/ids.h"
#include "worker/comm/collectives.h"

namespace lockstep {

struct TrainerOptions {
  int link_fd = -1;              // The socket to the agent.
  int64_t agent_process_id = 0;  // Of the process that must be the parent.
  WorkerId worker;
  std::string device = "cpu";
  int threads = 1;
  int64_t memory_bytes = 0;  // That jobs may take; 0: what the device has.
  std::string listen_host = "127.0.0.1";  // Where other ranks reach this one.
  Collectives collectives = Collectives::kAuto;
  std::string lock_key;  // Of the device; see device_lock.h.
  absl::Duration lock_timeout = absl::Seconds(50);
  absl::Duration connect_timeout = absl::Seconds(60);
  absl::Duration collective_timeout = absl::Minutes(5);
};

// Runs until the agent is gone or lets it go; returns the exit code: 0, or 1
// with a line on standard error.
int TrainerMain(const TrainerOptions& options);

}  // namespace lockstep

#endif  // WORKER_TRAINER_TRAINER_MAIN_H_
