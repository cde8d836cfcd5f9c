#include "common/time_proto.h"

#include <algorithm>
#include <cstdint>

namespace lockstep {
namespace {

// The ranges that google/protobuf/duration.proto and timestamp.proto give.
constexpr int64_t kDurationSecondsMax = 315'576'000'000;
constexpr int64_t kTimestampSecondsMin = -62'135'596'800;
constexpr int64_t kTimestampSecondsMax = 253'402'300'799;

}  // namespace

google::protobuf::Duration DurationToProto(absl::Duration duration) {
  duration = std::clamp(duration, absl::Seconds(-kDurationSecondsMax),
                        absl::Seconds(kDurationSecondsMax));
  absl::Duration rest;
  google::protobuf::Duration proto;
  proto.set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &rest));
  proto.set_nanos(static_cast<int32_t>(
      absl::IDivDuration(rest, absl::Nanoseconds(1), &rest)));
  return proto;
}

google::protobuf::Timestamp TimeToProto(absl::Time time) {
  // The nanoseconds of a Timestamp count forward, also before 1970.
  time = std::clamp(time, absl::FromUnixSeconds(kTimestampSecondsMin),
                    absl::FromUnixSeconds(kTimestampSecondsMax));
  const int64_t seconds = absl::ToUnixSeconds(time);
  google::protobuf::Timestamp proto;
  proto.set_seconds(seconds);
  proto.set_nanos(static_cast<int32_t>((time - absl::FromUnixSeconds(seconds)) /
                                       absl::Nanoseconds(1)));
  return proto;
}

absl::Duration DurationFromProto(const google::protobuf::Duration& proto) {
  return absl::Seconds(proto.seconds()) + absl::Nanoseconds(proto.nanos());
}

absl::Time TimeFromProto(const google::protobuf::Timestamp& proto) {
  return absl::FromUnixSeconds(proto.seconds()) +
         absl::Nanoseconds(proto.nanos());
}

}  // namespace lockstep
