// Time, as all daemons see it.
#ifndef COMMON_CLOCK_H_
#define COMMON_CLOCK_H_

#include <compare>

#include "absl/time/time.h"

namespace lockstep {

// A reading of the steady clock.  Deliberately not comparable with wall time:
// intervals are measured with Instant, people read absl::Time.
struct Instant {
  absl::Duration since_start;

  friend auto operator<=>(const Instant& a, const Instant& b) {
    return a.since_start < b.since_start   ? std::strong_ordering::less
           : a.since_start > b.since_start ? std::strong_ordering::greater
                                           : std::strong_ordering::equal;
  }
  friend bool operator==(const Instant& a, const Instant& b) {
    return a.since_start == b.since_start;
  }
  friend Instant operator+(Instant t, absl::Duration d) {
    return {t.since_start + d};
  }
  friend absl::Duration operator-(Instant a, Instant b) {
    return a.since_start - b.since_start;
  }
};

inline Instant InfiniteFuture() { return {absl::InfiniteDuration()}; }

// Both readings of one moment: what a pure state machine is told of time.
struct Moment {
  Instant steady;
  absl::Time wall;
};

// Where time comes from.  Implementations are thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;

  // Never goes back.  For leases, deadlines and intervals.
  virtual Instant Now() = 0;

  // May jump.  For logs, and for timestamps that people read.
  virtual absl::Time WallNow() = 0;

  Moment NowMoment() { return {Now(), WallNow()}; }
};

// The machine's clocks.  Lives for ever.
Clock& RealClock();

}  // namespace lockstep

#endif  // COMMON_CLOCK_H_
