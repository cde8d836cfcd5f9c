#include "coordinator/service/progress.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/time_proto.h"

namespace lockstep {

// Stored as a Job of which only generation and progress are set.
ProgressTracker ProgressTracker::FromStored(const std::string& stored) {
  ProgressTracker tracker;
  v1::Job job;
  if (job.ParseFromString(stored)) {
    tracker.generation_ = job.generation();
    tracker.reported_ = job.progress();
  }
  return tracker;
}

std::string ProgressTracker::Serialize() const {
  v1::Job job;
  job.set_generation(generation_);
  *job.mutable_progress() = reported_;
  return job.SerializeAsString();
}

bool ProgressTracker::Add(const v1::StepMetrics& row) {
  if (row.generation() < generation_) return false;
  if (row.generation() > generation_) *this = ProgressTracker();
  generation_ = row.generation();
  bool news = false;
  if (row.has_held_out_loss() &&
      row.step() + 1 > reported_.held_out_step_count()) {
    reported_.set_held_out_loss(row.held_out_loss());
    reported_.set_held_out_step_count(row.step() + 1);
    news = true;
  }
  if (row.rank() == 0 &&
      row.checkpoint_step_count() != reported_.checkpoint_step_count()) {
    reported_.set_checkpoint_step_count(row.checkpoint_step_count());
    // Another rank may have told of a later checkpoint before.
    if (row.step() > checkpoint_failure_step_) {
      reported_.clear_checkpoint_failure();
      checkpoint_failure_step_ = row.step();
    }
    news = true;
  }
  if (!row.checkpoint_failure().empty() &&
      row.step() >= checkpoint_failure_step_) {
    reported_.set_checkpoint_failure(
        absl::StrCat(row.worker(), ": ", row.checkpoint_failure()));
    checkpoint_failure_step_ = row.step();
    news = true;
  }
  if (row.step() + 1 <= reported_.step_count()) return news;
  reported_.set_step_count(row.step() + 1);
  // Of a skipped step there may be none.
  if (!row.skipped() || std::isfinite(row.loss())) {
    reported_.set_loss(row.loss());
  }
  if (row.skipped()) {
    reported_.set_skipped_step_count(reported_.skipped_step_count() + 1);
  }
  if (row.loss_spike()) {
    reported_.set_loss_spike_count(reported_.loss_spike_count() + 1);
    reported_.set_last_loss_spike_step(row.step());
  }
  window_.push_back(
      {row.token_count(), DurationFromProto(row.step_duration())});
  window_token_count_ += window_.back().token_count;
  window_duration_ += window_.back().duration;
  if (window_.size() > kWindowSteps) {
    window_token_count_ -= window_.front().token_count;
    window_duration_ -= window_.front().duration;
    window_.pop_front();
  }
  // Here that of one step.
  *reported_.mutable_remaining() =
      DurationToProto(window_duration_ / static_cast<double>(window_.size()));
  reported_.set_tokens_per_second(
      window_duration_ > absl::ZeroDuration()
          ? static_cast<double>(window_token_count_) /
                absl::ToDoubleSeconds(window_duration_)
          : 0);
  return true;
}

v1::JobProgress ProgressTracker::Progress(const JobRecord& record,
                                          int64_t tokens) const {
  v1::JobProgress progress;
  if (generation_ == record.generation) progress = reported_;
  progress.set_step_count(
      std::max(progress.step_count(), record.committed_step_count));
  if (progress.step_count() == 0) return v1::JobProgress();
  progress.set_max_steps(record.max_steps);
  progress.set_token_count(progress.step_count() * tokens);
  const int64_t steps_left = record.max_steps - progress.step_count();
  // By steps and not by tokens, of which not all may count.
  const bool known = progress.has_remaining();
  const absl::Duration step = DurationFromProto(progress.remaining());
  progress.clear_remaining();
  if (record.state == JobState::kRunning && record.max_steps > 0 &&
      steps_left >= 0 && known) {
    *progress.mutable_remaining() =
        DurationToProto(step * static_cast<double>(steps_left));
  }
  return progress;
}

}  // namespace lockstep
