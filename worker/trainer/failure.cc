#include "worker/trainer/failure.h"

#include "absl/strings/cord.h"

namespace lockstep {
namespace {

constexpr char kPayload[] = "lockstep/cause";

}  // namespace

absl::Status CausedBy(Failure::Cause cause, absl::Status status) {
  if (!status.ok() && !status.GetPayload(kPayload).has_value()) {
    status.SetPayload(kPayload,
                      absl::Cord(cause == Failure::Cause::kJob    ? "job"
                                 : cause == Failure::Cause::kPeer ? "peer"
                                                                  : "worker"));
  }
  return status;
}

Failure::Cause CauseOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayload);
  if (!payload.has_value()) return Failure::Cause::kWorker;
  if (*payload == "job") return Failure::Cause::kJob;
  return *payload == "peer" ? Failure::Cause::kPeer : Failure::Cause::kWorker;
}

}  // namespace lockstep
