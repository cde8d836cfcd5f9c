#include "common/clock.h"

#include <chrono>

#include "absl/time/clock.h"

namespace lockstep {
namespace {

class MachineClock : public Clock {
 public:
  Instant Now() override {
    return {
        absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch())};
  }
  absl::Time WallNow() override { return absl::Now(); }
};

}  // namespace

Clock& RealClock() {
  static MachineClock* clock = new MachineClock;
  return *clock;
}

}  // namespace lockstep
