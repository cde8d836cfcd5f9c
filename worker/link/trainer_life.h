// Ties a trainer's life to its agent's.
#ifndef WORKER_LINK_TRAINER_LIFE_H_
#define WORKER_LINK_TRAINER_LIFE_H_

#include <cstdint>

#include "absl/status/status.h"

namespace lockstep {

// Asks the system to kill this process when the agent dies.  To be called
// first, by the trainer itself: what is asked for before exec may be lost, and
// the agent may have died before the call, which is looked for.
//
// The signal comes with the end of the agent's *thread* that made this process;
// the agent makes it on the thread that lives as long as itself.
//
// Errors:
//   Unavailable: the agent is gone already; the trainer must end.
//   Internal: the system refuses.
absl::Status EndWithAgent(int64_t agent_process_id);

}  // namespace lockstep

#endif  // WORKER_LINK_TRAINER_LIFE_H_
