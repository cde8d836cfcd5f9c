// How far a job has come, as its ranks' step reports tell.
#ifndef COORDINATOR_SERVICE_PROGRESS_H_
#define COORDINATOR_SERVICE_PROGRESS_H_

#include <cstdint>
#include <deque>
#include <string>

#include "absl/time/time.h"
#include "coordinator/core/records.h"
#include "lockstep/v1/job.pb.h"
#include "lockstep/v1/monitor_service.pb.h"

namespace lockstep {

// Of one job.  Not thread-safe.
//
// Values that are equal on all ranks are taken from whichever rank's report of
// a step comes first.  What an older generation reported does not count any
// more once a later one has reported a step.
class ProgressTracker {
 public:
  // The rate is over this many steps.
  static constexpr int kWindowSteps = 32;

  // `stored` is what Serialize() gave, or empty.  What cannot be read counts as
  // empty: it is for display, and the next step brings it anew.
  static ProgressTracker FromStored(const std::string& stored);

  // In the order of arrival, repeats too.  Whether it told anything new.
  bool Add(const v1::StepMetrics& row);

  // `record`'s own count of steps may be ahead of the reports.  `tokens` are
  // those of one step.
  v1::JobProgress Progress(const JobRecord& record, int64_t tokens) const;

  std::string Serialize() const;

 private:
  struct Step {
    int64_t token_count = 0;
    absl::Duration duration;
  };

  // Of generation_: all but what Progress() adds.
  v1::JobProgress reported_;
  int64_t generation_ = 0;
  // Whose report set the checkpoint's failure, or cleared it.
  int64_t checkpoint_failure_step_ = -1;
  std::deque<Step> window_;
  // Sums over window_.
  int64_t window_token_count_ = 0;
  absl::Duration window_duration_;
};

}  // namespace lockstep

#endif  // COORDINATOR_SERVICE_PROGRESS_H_
