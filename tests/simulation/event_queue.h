// Virtual time: what is to happen, in order.
#ifndef TESTS_SIMULATION_EVENT_QUEUE_H_
#define TESTS_SIMULATION_EVENT_QUEUE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "common/clock.h"

namespace lockstep::simulation {

class EventQueue {
 public:
  Instant now() const { return now_; }

  void At(Instant when, std::function<void()> what) {
    if (when < now_) when = now_;
    events_.emplace(std::make_pair(when, ++last_sequence_), std::move(what));
  }
  void After(absl::Duration delay, std::function<void()> what) {
    At(now_ + delay, std::move(what));
  }

  // Runs the next event unless it is later than `until`; false if there is
  // none.
  bool RunNext(Instant until) {
    if (events_.empty() || until < events_.begin()->first.first) return false;
    auto node = events_.extract(events_.begin());
    now_ = node.key().first;
    node.mapped()();
    return true;
  }

 private:
  Instant now_;
  int64_t last_sequence_ = 0;
  std::map<std::pair<Instant, int64_t>, std::function<void()>> events_;
};

}  // namespace lockstep::simulation

#endif  // TESTS_SIMULATION_EVENT_QUEUE_H_
