// The trainer process: what `lockstep-worker trainer` runs.
#ifndef WORKER_TRAINER_TRAINER_MAIN_H_
#define WORKER_TRAINER_TRAINER_MAIN_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "common/ids.h"

namespace lockstep {

// All of it comes from the agent that started the process.
struct TrainerOptions {
  int link_fd = -1;              // Its end of the link (worker/link).
  int64_t agent_process_id = 0;  // For EndWithAgent().
  WorkerId worker;
  std::string device = "cpu";   // Its kind.
  int threads = 1;              // That compute; positive.
  std::string listen_host;      // Where other ranks reach this one.
  std::string lock_key;         // For DeviceLock::Acquire().
  absl::Duration lock_timeout;  // Likewise; less than the agent's patience.
};

// Runs until the link ends; then the process must end, with what this returns.
// First it ties its life to the agent's (EndWithAgent), waits for the device
// (DeviceLock), opens the link and says that it is ready.
int TrainerMain(const TrainerOptions& options);

}  // namespace lockstep

#endif  // WORKER_TRAINER_TRAINER_MAIN_H_
