// A job's course, shown as it goes.
#ifndef CLI_PROGRESS_H_
#define CLI_PROGRESS_H_

#include <optional>
#include <ostream>
#include <string>

#include "common/clock.h"
#include "lockstep/v1/job.pb.h"

namespace lockstep::cli {

// "step 120/300, loss 2.3121, held-out 2.4010 at step 100, 12.3k tokens/s,
// 1m20s left": what is known of it.
std::string ProgressText(const v1::Job& job);

// "2.3121"; "-" while no step had a loss.
std::string LossText(const v1::JobProgress& progress);

// A line with a bar, at most `columns` wide, the bar taking what is left:
// "RUNNING [=====>    ]  40% 120/300  loss 2.3121  held-out 2.4010  12.3k tok/s
// ETA 1m20s".  Before the first step: the state and its reason.
std::string ProgressBar(const v1::Job& job, int columns);

// On a terminal, one line that is written over; otherwise one line per change,
// but progress within a state at most once a second, so that logs stay short.
// Not thread-safe.
class ProgressView {
 public:
  ProgressView(std::ostream& out, bool terminal, int columns, Clock& clock)
      : out_(out), terminal_(terminal), columns_(columns), clock_(clock) {}

  // Ends the line.
  ~ProgressView() { Finish(); }
  ProgressView(const ProgressView&) = delete;
  ProgressView& operator=(const ProgressView&) = delete;

  void Show(const v1::Job& job);

  // Ends the line that is written over, so that something else may be printed.
  void Finish();

 private:
  std::ostream& out_;
  const bool terminal_;
  const int columns_;
  Clock& clock_;
  bool open_ = false;  // A line is begun.
  std::optional<v1::Job> shown_;
  Instant shown_at_;
};

}  // namespace lockstep::cli

#endif  // CLI_PROGRESS_H_
