// Times and durations as the API carries them.
#ifndef COMMON_TIME_PROTO_H_
#define COMMON_TIME_PROTO_H_

#include "absl/time/time.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/timestamp.pb.h"

namespace lockstep {

// Cut to whole nanoseconds; beyond the API's range (10,000 years) the nearest
// value within it.
google::protobuf::Duration DurationToProto(absl::Duration duration);
google::protobuf::Timestamp TimeToProto(absl::Time time);

// Whatever the message holds, also one that no valid message would.
absl::Duration DurationFromProto(const google::protobuf::Duration& proto);
absl::Time TimeFromProto(const google::protobuf::Timestamp& proto);

}  // namespace lockstep

#endif  // COMMON_TIME_PROTO_H_
