#include "cli/progress.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/exit_code.h"
#include "cli/text.h"

namespace lockstep::cli {
namespace {

// Between lines that tell of nothing but steps.
constexpr absl::Duration kLineInterval = absl::Seconds(10);
constexpr int kBarMin = 10;
constexpr int kBarMax = 40;

std::string Steps(const v1::JobProgress& progress) {
  return progress.max_steps() > 0
             ? absl::StrCat(progress.step_count(), "/", progress.max_steps())
             : absl::StrCat(progress.step_count());
}

// The part that is done: 0 to 1; 0 while unknown.
double Done(const v1::JobProgress& progress) {
  if (progress.max_steps() <= 0) return 0;
  return std::clamp(static_cast<double>(progress.step_count()) /
                        static_cast<double>(progress.max_steps()),
                    0.0, 1.0);
}

// Whether `now` tells more of `before` than that steps were taken.
bool IsNews(const v1::Job& before, const v1::Job& now) {
  return before.state() != now.state() ||
         before.state_reason() != now.state_reason() ||
         before.generation() != now.generation() ||
         before.progress().has_held_out_loss() !=
             now.progress().has_held_out_loss() ||
         before.progress().skipped_step_count() !=
             now.progress().skipped_step_count() ||
         before.progress().loss_spike_count() !=
             now.progress().loss_spike_count() ||
         before.progress().checkpoint_failure() !=
             now.progress().checkpoint_failure() ||
         before.progress().held_out_step_count() !=
             now.progress().held_out_step_count();
}

}  // namespace

std::string LossText(const v1::JobProgress& progress) {
  return progress.has_loss() ? absl::StrFormat("%.4f", progress.loss()) : "-";
}

std::string ProgressText(const v1::Job& job) {
  const v1::JobProgress& p = job.progress();
  if (p.step_count() == 0) return "no step yet";
  std::string text = absl::StrCat("step ", Steps(p), ", loss ", LossText(p));
  if (p.skipped_step_count() > 0) {
    absl::StrAppend(&text, ", ", p.skipped_step_count(), " skipped");
  }
  if (p.loss_spike_count() > 0) {
    absl::StrAppend(&text, ", loss jumped at step ", p.last_loss_spike_step());
    if (p.loss_spike_count() > 1) {
      absl::StrAppend(&text, " (", p.loss_spike_count(), " times in all)");
    }
  }
  if (p.has_held_out_loss()) {
    absl::StrAppendFormat(&text, ", held-out %.4f at step %d",
                          p.held_out_loss(), p.held_out_step_count());
  }
  if (p.checkpoint_step_count() > 0) {
    absl::StrAppend(&text, ", checkpoint at step ", p.checkpoint_step_count());
  }
  if (!p.checkpoint_failure().empty()) {
    absl::StrAppend(&text, ", warning: ", OneLine(p.checkpoint_failure()));
  }
  if (!IsFinal(job.state()) && p.tokens_per_second() > 0) {
    absl::StrAppend(&text, ", ", CountText(p.tokens_per_second()), " tokens/s");
  }
  if (!IsFinal(job.state()) && p.has_remaining()) {
    absl::StrAppend(&text, ", ", DurationText(ToDuration(p.remaining())),
                    " left");
  }
  return text;
}

std::string ProgressBar(const v1::Job& job, int columns) {
  const v1::JobProgress& p = job.progress();
  const std::string state = v1::Job::State_Name(job.state());
  if (p.step_count() == 0) {
    return Fit(absl::StrCat(state, job.state_reason().empty() ? "" : "  ",
                            OneLine(job.state_reason())),
               columns);
  }
  std::string tail = absl::StrCat(" ", Steps(p), "  loss ", LossText(p));
  if (p.has_held_out_loss()) {
    absl::StrAppendFormat(&tail, "  held-out %.4f", p.held_out_loss());
  }
  if (!IsFinal(job.state()) && p.tokens_per_second() > 0) {
    absl::StrAppend(&tail, "  ", CountText(p.tokens_per_second()), " tok/s");
  }
  if (!IsFinal(job.state()) && p.has_remaining()) {
    absl::StrAppend(&tail, "  ETA ", DurationText(ToDuration(p.remaining())));
  }
  if (!job.state_reason().empty()) {
    absl::StrAppend(&tail, "  ", OneLine(job.state_reason()));
  }
  if (p.max_steps() <= 0) return Fit(absl::StrCat(state, tail), columns);

  const double done = Done(p);
  const std::string percent = absl::StrFormat(" %3d%%", int(done * 100));
  // " []" and the texts around the bar.
  const int left = columns - DisplayWidth(state) - 3 - DisplayWidth(percent) -
                   DisplayWidth(tail);
  const int width = std::clamp(left, kBarMin, kBarMax);
  const int filled = static_cast<int>(done * width);
  std::string bar(static_cast<size_t>(filled), '=');
  if (filled < width) bar.push_back('>');
  bar.resize(static_cast<size_t>(width), ' ');
  return Fit(absl::StrCat(state, " [", bar, "]", percent, tail), columns);
}

void ProgressView::Show(const v1::Job& job) {
  if (terminal_) {
    // Erase to the end of the line after writing over it: no flicker.  The last
    // column stays free, where some terminals would wrap.
    out_ << "\r" << ProgressBar(job, columns_ - 1) << "\x1B[K" << std::flush;
    open_ = true;
    return;
  }
  const Instant now = clock_.Now();
  const bool due =
      !shown_ || IsNews(*shown_, job) || now - shown_at_ >= kLineInterval;
  if (!due) return;
  out_ << job.name() << " " << v1::Job::State_Name(job.state()) << ": "
       << ProgressText(job);
  if (!job.state_reason().empty())
    out_ << " (" << OneLine(job.state_reason()) << ")";
  out_ << "\n" << std::flush;
  shown_ = job;
  shown_at_ = now;
}

void ProgressView::Finish() {
  if (open_) out_ << "\n" << std::flush;
  open_ = false;
}

}  // namespace lockstep::cli
