#include "common/time_proto.h"

#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(TimeProtoTest, DurationsComeBackToTheNanosecond) {
  for (const absl::Duration duration :
       {absl::ZeroDuration(), absl::Nanoseconds(1), absl::Nanoseconds(-1),
        absl::Milliseconds(1500), absl::Milliseconds(-1500),
        absl::Hours(24 * 365)}) {
    EXPECT_EQ(DurationFromProto(DurationToProto(duration)), duration);
  }
  EXPECT_EQ(DurationToProto(absl::Milliseconds(-1500)).seconds(), -1);
  EXPECT_EQ(DurationToProto(absl::Milliseconds(-1500)).nanos(), -500'000'000);
}

TEST(TimeProtoTest, TimesComeBackToTheNanosecond) {
  for (const absl::Time time :
       {absl::UnixEpoch(), absl::FromUnixNanos(1'700'000'000'123'456'789),
        absl::FromUnixNanos(-1)}) {
    EXPECT_EQ(TimeFromProto(TimeToProto(time)), time);
  }
  EXPECT_EQ(TimeToProto(absl::FromUnixNanos(-1)).seconds(), -1);
  EXPECT_EQ(TimeToProto(absl::FromUnixNanos(-1)).nanos(), 999'999'999);
}

TEST(TimeProtoTest, WhatTheApiCannotCarryBecomesItsBound) {
  EXPECT_EQ(DurationToProto(absl::InfiniteDuration()).seconds(),
            315'576'000'000);
  EXPECT_EQ(DurationToProto(-absl::InfiniteDuration()).seconds(),
            -315'576'000'000);
  EXPECT_EQ(TimeToProto(absl::InfiniteFuture()).seconds(), 253'402'300'799);
  EXPECT_EQ(TimeToProto(absl::InfinitePast()).seconds(), -62'135'596'800);
}

}  // namespace
}  // namespace lockstep
