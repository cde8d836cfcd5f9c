// The trainer's end of the link to its agent.
#ifndef WORKER_LINK_TRAINER_LINK_H_
#define WORKER_LINK_TRAINER_LINK_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "common/session.h"
#include "lockstep/v1/monitor_service.pb.h"
#include "worker/link/frame.h"
#include "worker/link/unique_fd.h"

namespace lockstep {

// What is sent arrives in the order of the calls.  A call blocks while the
// agent does not read, which it does at once unless it is stopped.
//
// Sending is thread-safe; Next() belongs to one thread.
class TrainerLink {
 public:
  // `socket`: the descriptor that the agent passed on.  It is set to close on
  // exec.
  explicit TrainerLink(UniqueFd socket);

  // Each of the sending calls:
  //
  // Errors:
  //   Unavailable: the agent is gone; the trainer must end.
  //   InvalidArgument: the message is too long to be sent; nothing was.

  // First, once, with the device in hand: from now on commands come.
  absl::Status SendReady();

  // What the trainer holds, whole, whenever that changes; no value once it has
  // let go of a generation, and then exactly once.  Its failure and detail may
  // be any bytes; they are made valid UTF-8.
  absl::Status SendHolds(const std::optional<HeldGeneration>& held);

  // A committed step of the generation it holds: `job` is `jobs/{job}`.
  absl::Status SendStepReport(const v1::StepMetrics& metrics);

  // It trains, or writes what it trained, and is not stuck.
  absl::Status SendProgress();

  // Waits for the next command.
  //
  // Errors:
  //   Unavailable: the agent is gone, or is letting this trainer go; the
  //     trainer must end.
  //   InvalidArgument: this is nothing an agent says.
  absl::StatusOr<CommandBody> Next();

 private:
  absl::Status Send(absl::string_view payload) ABSL_LOCKS_EXCLUDED(send_mutex_);

  const UniqueFd socket_;
  // Held over a whole frame, so that frames do not mix.
  Mutex send_mutex_;
  FrameParser parser_;
};

}  // namespace lockstep

#endif  // WORKER_LINK_TRAINER_LINK_H_
