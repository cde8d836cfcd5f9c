// Whose fault an error is, carried along with it.
#ifndef WORKER_TRAINER_FAILURE_H_
#define WORKER_TRAINER_FAILURE_H_

#include "absl/status/status.h"
#include "common/session.h"

namespace lockstep {

// The same error, blamed on `cause`.  OK stays OK; a blame that is already
// there stays.
absl::Status CausedBy(Failure::Cause cause, absl::Status status);

// Whom `status` was blamed on; an error nobody blamed is this worker's.
Failure::Cause CauseOf(const absl::Status& status);

}  // namespace lockstep

#endif  // WORKER_TRAINER_FAILURE_H_
