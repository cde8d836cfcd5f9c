#include "worker/agent/agent_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status.h"

namespace lockstep {
namespace {

absl::Duration Backoff(absl::Duration first, int attempt, absl::Duration max) {
  return std::min(max, first * (int64_t{1} << std::min(attempt, 30)));
}

// Of two waits, the same for every attempt of a worker but different between
// workers, so that a fleet does not come back all at once: 50 % to 100 %.
absl::Duration Spread(absl::Duration wait, const WorkerId& worker,
                      int64_t attempt) {
  uint64_t hash = 14695981039346656037u + static_cast<uint64_t>(attempt);
  for (const char c : worker.value) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211u;
  }
  return wait * (0.5 + static_cast<double>(hash >> 40) * 0x1p-25);
}

absl::Status RequirePositive(const char* name, absl::Duration value) {
  if (value > absl::ZeroDuration()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      name, " must be positive, got ", absl::FormatDuration(value)));
}

}  // namespace

absl::StatusOr<AgentCore> AgentCore::Create(const AgentOptions& options) {
  if (!IsResourceId(options.worker.value)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "worker name \"", options.worker.value,
        "\": expected 1 to 63 letters a to z, digits, hyphens and dots, "
        "beginning with a letter or digit"));
  }
  if (options.incarnation.value < 1) {
    return absl::InvalidArgumentError("incarnation must be at least 1");
  }
  RETURN_IF_ERROR(RequirePositive("start_timeout", options.start_timeout));
  RETURN_IF_ERROR(RequirePositive("abort_timeout", options.abort_timeout));
  RETURN_IF_ERROR(
      RequirePositive("progress_timeout", options.progress_timeout));
  RETURN_IF_ERROR(RequirePositive("restart_backoff", options.restart_backoff));
  RETURN_IF_ERROR(
      RequirePositive("restart_backoff_max", options.restart_backoff_max));
  RETURN_IF_ERROR(RequirePositive("hello_timeout", options.hello_timeout));
  RETURN_IF_ERROR(
      RequirePositive("reconnect_backoff", options.reconnect_backoff));
  RETURN_IF_ERROR(
      RequirePositive("reconnect_backoff_max", options.reconnect_backoff_max));
  RETURN_IF_ERROR(
      RequirePositive("beat_interval_min", options.beat_interval_min));
  RETURN_IF_ERROR(RequirePositive("report_interval", options.report_interval));
  if (options.report_batch_max < 1 ||
      options.report_count_max < options.report_batch_max) {
    return absl::InvalidArgumentError(
        "report_count_max must be at least report_batch_max, and that 1");
  }
  return AgentCore(options);
}

AgentCore::AgentCore(const AgentOptions& options) : options_(options) {}

void AgentCore::Start(Instant now, AgentEffects& effects) {
  LS_CHECK(trainer_.value == 0);
  Spawn(now, effects);
  Open(now, effects);
}

void AgentCore::Tick(Instant now, AgentEffects& effects) {
  Expire(now, effects);
  Flush(now, effects);
}

void AgentCore::Expire(Instant now, AgentEffects& effects) {
  if (trainer_state_ == TrainerState::kDead && trainer_deadline_ <= now) {
    Spawn(now, effects);
  } else if (trainer_state_ == TrainerState::kStarting &&
             trainer_deadline_ <= now && !kill_sent_) {
    Kill(absl::StrCat("it was not ready within ",
                      absl::FormatDuration(options_.start_timeout)),
         effects);
  }
  if (abort_deadline_.has_value() && *abort_deadline_ <= now && !kill_sent_) {
    Kill(absl::StrCat("it did not let go of its generation within ",
                      absl::FormatDuration(options_.abort_timeout)),
         effects);
  }
  if (progress_deadline_.has_value() && *progress_deadline_ <= now &&
      !kill_sent_) {
    Kill(absl::StrCat("it gave no sign of going on for ",
                      absl::FormatDuration(options_.progress_timeout)),
         effects);
  }
  if (stream_state_ != StreamState::kWelcome && stream_deadline_ <= now) {
    Open(now, effects);
  }
}

void AgentCore::RenewProgress(Instant now) {
  const auto& held = status_.held;
  const bool must_go_on =
      held.has_value() && holder_ == trainer_ &&
      trainer_state_ == TrainerState::kReady &&
      (held->phase == Phase::kTraining ||
       (held->phase == Phase::kOutputReady && commit_told_));
  progress_deadline_.reset();
  if (must_go_on) progress_deadline_ = now + options_.progress_timeout;
}

void AgentCore::Spawn(Instant now, AgentEffects& effects) {
  trainer_state_ = TrainerState::kStarting;
  ++trainer_.value;
  kill_sent_ = false;
  trainer_deadline_ = now + options_.start_timeout;
  effects.push_back(SpawnTrainer{trainer_});
}

void AgentCore::Kill(std::string reason, AgentEffects& effects) {
  kill_sent_ = true;
  status_.trainer_ready = false;
  effects.push_back(KillTrainer{trainer_, std::move(reason)});
}

void AgentCore::Open(Instant now, AgentEffects& effects) {
  stream_state_ = StreamState::kHello;
  stream_deadline_ = now + std::min(options_.hello_timeout,
                                    lease_.value_or(absl::InfiniteDuration()));
  ++stream_;
  told_.reset();
  next_unsent_ = first_report_;
  effects.push_back(OpenStream{});
  effects.push_back(
      SendHello{Hello{.worker = options_.worker,
                      .incarnation = options_.incarnation,
                      .stream = stream_,
                      .device = options_.device,
                      .status = status_,
                      .coordinator_incarnation = coordinator_incarnation_}});
  // The status that went with the hello.  Until the welcome nothing more is
  // said: it would count commands of a coordinator that may be another.
  told_ = status_;
  next_flush_ = now;
}

void AgentCore::OnWelcome(Instant now, const Welcome& welcome,
                          AgentEffects& effects) {
  // One that comes too late is of the stream before.
  const int64_t stream = stream_;
  Expire(now, effects);
  if (stream_state_ == StreamState::kHello && stream_ == stream) {
    if (welcome.coordinator_incarnation < coordinator_incarnation_) {
      effects.push_back(Exit{absl::FailedPreconditionError(absl::StrCat(
          "the coordinator is incarnation ",
          welcome.coordinator_incarnation.value, ", but this worker has met ",
          coordinator_incarnation_.value,
          ": it runs on an old copy of its store"))});
      return;
    }
    if (coordinator_incarnation_ < welcome.coordinator_incarnation) {
      coordinator_incarnation_ = welcome.coordinator_incarnation;
      status_.applied_sequence = 0;
    }
    stream_state_ = StreamState::kWelcome;
    failed_opens_ = 0;
    name_taken_since_.reset();
    lease_ = std::max(welcome.lease, options_.beat_interval_min);
    beat_interval_ =
        std::max(welcome.beat_interval, options_.beat_interval_min);
    next_beat_ = now + beat_interval_;
  }
  Flush(now, effects);
}

void AgentCore::OnStreamClosed(Instant now, const absl::Status& status,
                               AgentEffects& effects) {
  if (stream_state_ != StreamState::kClosed) {
    stream_state_ = StreamState::kClosed;
    absl::Duration max = options_.reconnect_backoff_max;
    if (lease_.has_value()) max = std::min(max, *lease_ / 3);
    stream_deadline_ =
        now + Spread(Backoff(options_.reconnect_backoff, failed_opens_, max),
                     options_.worker, stream_);
    ++failed_opens_;
    switch (status.code()) {
      case absl::StatusCode::kAlreadyExists:
        if (!name_taken_since_.has_value()) name_taken_since_ = now;
        if (now - *name_taken_since_ >= options_.name_taken_patience) {
          effects.push_back(Exit{status});
          return;
        }
        break;
      case absl::StatusCode::kFailedPrecondition:
      case absl::StatusCode::kInvalidArgument:
      case absl::StatusCode::kUnimplemented:
      case absl::StatusCode::kUnauthenticated:
      case absl::StatusCode::kPermissionDenied:
        effects.push_back(Exit{status});
        return;
      default:
        break;
    }
  }
  Expire(now, effects);
  Flush(now, effects);
}

void AgentCore::OnCommand(Instant now, const Command& command,
                          AgentEffects& effects) {
  Expire(now, effects);
  if (stream_state_ == StreamState::kWelcome &&
      command.sequence > status_.applied_sequence) {
    status_.applied_sequence = command.sequence;
    Apply(now, command.body, effects);
  }
  Flush(now, effects);
}

void AgentCore::Apply(Instant now, const CommandBody& body,
                      AgentEffects& effects) {
  auto& held = status_.held;
  const GenerationKey& key = KeyOf(body);
  if (const auto* prepare = std::get_if<Prepare>(&body)) {
    // Without a trainer, or with another generation in its hands, it takes
    // nothing on; the coordinator sees from the status that it holds nothing.
    if (held.has_value() || trainer_state_ != TrainerState::kReady) return;
    held.emplace();
    held->key = key;
    held->rank = prepare->rank;
    held->phase = Phase::kPreparing;
    holder_ = trainer_;
    commit_told_ = false;
    effects.push_back(TellTrainer{trainer_, body});
    return;
  }
  if (!held.has_value() || held->key != key) return;
  // What is being let go of is neither started nor committed any more.
  if (held->phase == Phase::kAborting) return;
  if (std::holds_alternative<Release>(body)) {
    if (holder_ != trainer_ || trainer_state_ != TrainerState::kReady) {
      held.reset();  // The trainer that held it is dead.
      return;
    }
    held->phase = Phase::kAborting;
    abort_deadline_ = now + options_.abort_timeout;
  }
  commit_told_ |= std::holds_alternative<CommitOutput>(body);
  RenewProgress(now);
  if (holder_ == trainer_ && trainer_state_ == TrainerState::kReady) {
    effects.push_back(TellTrainer{trainer_, body});
  }
}

void AgentCore::OnReportsAck(Instant now, int64_t sequence,
                             AgentEffects& effects) {
  Expire(now, effects);
  while (!reports_.empty() && first_report_ <= sequence) {
    reports_.pop_front();
    ++first_report_;
  }
  next_unsent_ = std::max(next_unsent_, first_report_);
  Flush(now, effects);
}

void AgentCore::OnTrainerReady(Instant now, TrainerId trainer,
                               AgentEffects& effects) {
  Expire(now, effects);
  if (trainer == trainer_ && trainer_state_ == TrainerState::kStarting &&
      !kill_sent_) {
    trainer_state_ = TrainerState::kReady;
    status_.trainer_ready = true;
  }
  Flush(now, effects);
}

void AgentCore::OnTrainerHolds(Instant now, TrainerId trainer,
                               const std::optional<HeldGeneration>& held,
                               AgentEffects& effects) {
  Expire(now, effects);
  if (trainer == trainer_ && trainer == holder_ &&
      trainer_state_ == TrainerState::kReady && !kill_sent_ &&
      status_.held.has_value()) {
    if (!held.has_value()) {
      if (status_.held->phase == Phase::kAborting) deaths_in_a_row_ = 0;
      status_.held.reset();
      abort_deadline_.reset();
    } else if (held->key == status_.held->key &&
               status_.held->phase != Phase::kAborting) {
      const int64_t committed = std::max(held->committed_step_count,
                                         status_.held->committed_step_count);
      status_.held = held;
      status_.held->committed_step_count = committed;
    }
    RenewProgress(now);
  }
  Flush(now, effects);
}

void AgentCore::OnTrainerProgress(Instant now, TrainerId trainer,
                                  AgentEffects& effects) {
  Expire(now, effects);
  if (trainer == trainer_) RenewProgress(now);
  Flush(now, effects);
}

void AgentCore::OnStepReport(Instant now, TrainerId trainer,
                             const GenerationKey& key, int64_t step,
                             std::string report, AgentEffects& effects) {
  Expire(now, effects);
  if (trainer == trainer_ && trainer_state_ == TrainerState::kReady) {
    if (trainer == holder_ && status_.held.has_value() &&
        status_.held->key == key) {
      status_.held->committed_step_count =
          std::max(status_.held->committed_step_count, step + 1);
    }
    RenewProgress(now);
    if (static_cast<int>(reports_.size()) == options_.report_count_max) {
      reports_.pop_front();
      ++first_report_;
      ++dropped_count_;
      next_unsent_ = std::max(next_unsent_, first_report_);
    }
    if (next_unsent_ == first_report_ + static_cast<int64_t>(reports_.size())) {
      next_flush_ = now + options_.report_interval;
    }
    reports_.push_back(std::move(report));
  }
  Flush(now, effects);
}

void AgentCore::OnTrainerDied(Instant now, TrainerId trainer,
                              const std::string& how, AgentEffects& effects) {
  if (trainer == trainer_ && trainer_state_ != TrainerState::kDead) {
    trainer_state_ = TrainerState::kDead;
    trainer_deadline_ =
        now + Backoff(options_.restart_backoff, deaths_in_a_row_++,
                      options_.restart_backoff_max);
    abort_deadline_.reset();
    progress_deadline_.reset();
    status_.trainer_ready = false;
    ++status_.trainer_death_count;
    status_.last_trainer_death = how;
    if (status_.held.has_value()) {
      if (status_.held->phase == Phase::kAborting) {
        status_.held.reset();
      } else if (holder_ == trainer_ &&
                 status_.held->phase != Phase::kFinished &&
                 status_.held->phase != Phase::kFailed) {
        status_.held->phase = Phase::kFailed;
        status_.held->failure =
            Failure{.cause = Failure::Cause::kWorker,
                    .code = absl::StatusCode::kUnavailable,
                    .message = absl::StrCat("its trainer died: ", how)};
      }
    }
  }
  Expire(now, effects);
  Flush(now, effects);
}

void AgentCore::Flush(Instant now, AgentEffects& effects) {
  if (stream_state_ != StreamState::kWelcome) return;
  // A step alone is no news: its report tells it.
  auto is_news = [&] {
    if (!told_.has_value()) return true;
    WorkerStatus told = *told_;
    if (told.held.has_value() && status_.held.has_value()) {
      told.held->committed_step_count = status_.held->committed_step_count;
    }
    return told != status_;
  };
  const int64_t end = first_report_ + static_cast<int64_t>(reports_.size());
  const bool news = is_news();
  // Reports go before a status that may end the generation, so that none is
  // missing when the job ends.
  while (next_unsent_ < end &&
         (news || next_flush_ <= now ||
          end - next_unsent_ >= options_.report_batch_max)) {
    SendReports message;
    message.first_sequence = next_unsent_;
    message.dropped_count = dropped_count_;
    const int64_t stop =
        std::min(end, next_unsent_ + options_.report_batch_max);
    for (; next_unsent_ < stop; ++next_unsent_) {
      message.reports.push_back(reports_[next_unsent_ - first_report_]);
    }
    effects.push_back(std::move(message));
  }
  if (news || next_beat_ <= now) {
    effects.push_back(SendStatus{status_});
    told_ = status_;
    next_beat_ = now + beat_interval_;
  }
}

Instant AgentCore::NextDeadline() const {
  Instant next = InfiniteFuture();
  if (trainer_state_ == TrainerState::kDead ||
      (trainer_state_ == TrainerState::kStarting && !kill_sent_)) {
    next = std::min(next, trainer_deadline_);
  }
  if (abort_deadline_.has_value() && !kill_sent_) {
    next = std::min(next, *abort_deadline_);
  }
  if (progress_deadline_.has_value() && !kill_sent_) {
    next = std::min(next, *progress_deadline_);
  }
  if (stream_state_ != StreamState::kWelcome) {
    next = std::min(next, stream_deadline_);
  } else {
    next = std::min(next, next_beat_);
    if (next_unsent_ < first_report_ + static_cast<int64_t>(reports_.size())) {
      next = std::min(next, next_flush_);
    }
  }
  return next;
}

}  // namespace lockstep
