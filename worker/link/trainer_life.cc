#include "worker/link/trainer_life.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace lockstep {

absl::Status EndWithAgent(int64_t agent_process_id) {
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) {
    return absl::InternalError(
        absl::StrCat("prctl(PR_SET_PDEATHSIG): ", std::strerror(errno)));
  }
  // It may have died before the call above: then another process has taken its
  // place as the parent, and no signal will come.
  if (getppid() != agent_process_id) {
    return absl::UnavailableError(
        absl::StrCat("the agent, process ", agent_process_id, ", is gone"));
  }
  return absl::OkStatus();
}

}  // namespace lockstep
