// common/session.h's values as messages of worker_service.proto, both ways.
//
// ToProto() takes valid values.  Text for people (how a trainer died, why a
// rank failed) may hold any bytes: it is made valid UTF-8, since a message with
// other text does not parse at all, and cut to kPeopleTextBytesMax.
//
// FromProto() trusts nothing: every error is InvalidArgument and names the
// field, what it expected and what it got.  What depends on the receiver's
// state (whether a worker's name is free, say) is not its business.
#ifndef COMMON_SESSION_PROTO_H_
#define COMMON_SESSION_PROTO_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/session.h"
#include "lockstep/v1/monitor_service.pb.h"
#include "lockstep/v1/worker_service.pb.h"

namespace lockstep {

inline constexpr size_t kPeopleTextBytesMax = 8192;

v1::Worker::Phase ToProto(Phase phase);
v1::Worker::Collectives ToProto(CollectivesInUse collectives);
v1::DeviceInfo ToProto(const DeviceDescription& device);
v1::Failure ToProto(const Failure& failure);
v1::LedgerRow ToProto(const LedgerRow& row);
v1::HeldGeneration ToProto(const HeldGeneration& held);
v1::WorkerStatus ToProto(const WorkerStatus& status);
v1::Hello ToProto(const Hello& hello);
v1::Welcome ToProto(const Welcome& welcome);
// A Prepare's spec must be a serialized JobSpec: the caller has checked it when
// it first met it.
v1::Command ToProto(const Command& command);

absl::StatusOr<Phase> FromProto(v1::Worker::Phase phase);
absl::StatusOr<DeviceDescription> FromProto(const v1::DeviceInfo& proto);
absl::StatusOr<Failure> FromProto(const v1::Failure& proto);
absl::StatusOr<HeldGeneration> FromProto(const v1::HeldGeneration& proto);
absl::StatusOr<WorkerStatus> FromProto(const v1::WorkerStatus& proto);
absl::StatusOr<Hello> FromProto(const v1::Hello& proto);
absl::StatusOr<Welcome> FromProto(const v1::Welcome& proto);
// The spec of a Prepare is serialized deterministically: the same spec, the
// same bytes.
absl::StatusOr<Command> FromProto(const v1::Command& proto);

// `text` as valid UTF-8 without control characters other than line breaks and
// tabs (what is not becomes '?'), of at most kPeopleTextBytesMax bytes.
std::string PeopleText(absl::string_view text);

}  // namespace lockstep

#endif  // COMMON_SESSION_PROTO_H_
