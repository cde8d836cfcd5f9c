#include "worker/device_rates.h"

#include <sys/wait.h>

#include <cerrno>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::Gt;
using ::testing::Lt;

constexpr absl::Duration kPatience = absl::Minutes(2);

RateOptions Briefly() {
  return {.threads = 2, .time_each = absl::Milliseconds(1)};
}

TEST(DeviceRatesTest, EverythingIsMeasuredThatThereIs) {
  const auto rates = MeasureRatesApart(Briefly(), kPatience);

  ASSERT_TRUE(rates.ok()) << rates.status();
  // Wide enough for any machine, and narrow enough for a wrong unit to show.
  EXPECT_THAT(rates->float32_flops, AllOf(Gt(1e8), Lt(1e15)));
  EXPECT_THAT(rates->memory_bytes, AllOf(Gt(1e7), Lt(1e14)));
  EXPECT_THAT(rates->shared_memory_bytes, AllOf(Gt(1e5), Lt(1e13)));
  EXPECT_THAT(rates->network_bytes, AllOf(Gt(1e5), Lt(1e13)));
  const auto device = kernels::CreateCpuDevice(1);
  ASSERT_TRUE(device.ok());
  EXPECT_EQ(rates->bfloat16_flops > 0, (*device)->has_bfloat16());
  // The process is gone.
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

TEST(DeviceRatesTest, WhatIsNotAllowedOrNotThereIsNotKnown) {
  RateOptions options = Briefly();
  options.collectives = Collectives::kTcp;
  options.listen_host = "192.0.2.1";  // Of no host.

  const auto rates = MeasureRatesApart(options, kPatience);

  ASSERT_TRUE(rates.ok()) << rates.status();
  EXPECT_GT(rates->memory_bytes, 0);
  EXPECT_EQ(rates->shared_memory_bytes, 0);
  EXPECT_EQ(rates->network_bytes, 0);
}

TEST(DeviceRatesTest, WhatTakesTooLongIsEnded) {
  RateOptions options = Briefly();
  options.time_each = absl::Hours(1);

  const auto rates = MeasureRatesApart(options, absl::Milliseconds(50));

  EXPECT_EQ(rates.status().code(), absl::StatusCode::kDeadlineExceeded)
      << rates.status();
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
}

}  // namespace
}  // namespace lockstep
