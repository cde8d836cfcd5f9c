#include "common/session.h"

namespace lockstep {

absl::string_view PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kPreparing:
      return "PREPARING";
    case Phase::kJoined:
      return "JOINED";
    case Phase::kConnecting:
      return "CONNECTING";
    case Phase::kTraining:
      return "TRAINING";
    case Phase::kOutputReady:
      return "OUTPUT_READY";
    case Phase::kFinished:
      return "FINISHED";
    case Phase::kFailed:
      return "FAILED";
    case Phase::kAborting:
      return "ABORTING";
  }
  return "UNKNOWN";
}

}  // namespace lockstep
