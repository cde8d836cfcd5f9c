// What this worker sustains, measured: for plans, which predict times from it.
#ifndef WORKER_DEVICE_RATES_H_
#define WORKER_DEVICE_RATES_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/session.h"
#include "worker/comm/collectives.h"

namespace lockstep {

struct RateOptions {
  int threads = 1;
  std::string listen_host = "127.0.0.1";
  Collectives collectives = Collectives::kAuto;

  // Each rate is the median of what is seen in this time, and of one try at
  // least.
  absl::Duration time_each = absl::Milliseconds(50);
};

// Measures here and now.  Products are of float32 and, where the device has it,
// bfloat16; memory is copied; two ranks of this process sum an array, by shared
// memory and by TCP at `listen_host`.  What is refused is 0.
DeviceRates MeasureRates(const RateOptions& options);

// The same in a process of its own, so that neither its threads and memory nor
// its death is the caller's, who must have but one thread.
//
// Errors:
//   Unavailable: it cannot be started, or died.
//   DeadlineExceeded: it took longer than `timeout`, and is killed.
absl::StatusOr<DeviceRates> MeasureRatesApart(const RateOptions& options,
                                              absl::Duration timeout);

}  // namespace lockstep

#endif  // WORKER_DEVICE_RATES_H_
