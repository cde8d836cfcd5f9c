// What the core wants done, in order.
#ifndef COORDINATOR_CORE_EFFECTS_H_
#define COORDINATOR_CORE_EFFECTS_H_

#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/session.h"
#include "coordinator/core/records.h"

namespace lockstep {

// Store the job, replacing what is stored of it.  Must be durable before any
// later effect is carried out.
struct PersistJob {
  JobRecord record;
};

// Forget the job and what is stored of it.  Likewise.
struct EraseJob {
  JobId job;
};

// First message to a worker on this session.
struct SendWelcome {
  SessionId session;
  Welcome welcome;
};

struct SendCommand {
  SessionId session;
  Command command;
};

// End the session's stream with this status.  Nothing is sent on it after.
struct CloseSession {
  SessionId session;
  absl::Status status;
};

// Show the job to those who watch.
struct PublishJob {
  JobRecord record;
};

// Show the worker to those who look.  Comes with every beat too, for the time
// when it was last seen.
struct PublishWorker {
  WorkerView view;
};

// The worker is forgotten.
struct RetractWorker {
  WorkerId worker;
};

using Effect =
    std::variant<PersistJob, EraseJob, SendWelcome, SendCommand, CloseSession,
                 PublishJob, PublishWorker, RetractWorker>;
using Effects = std::vector<Effect>;

}  // namespace lockstep

#endif  // COORDINATOR_CORE_EFFECTS_H_
