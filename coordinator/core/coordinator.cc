#include "coordinator/core/coordinator.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/check.h"
#include "common/micro_batches.h"
#include "common/status.h"
#include "coordinator/core/phrases.h"

namespace lockstep {
namespace {

// A log this long can only come of a fault of ours: a worker with
// unacknowledged commands is not placed, and one place needs five.
constexpr size_t kCommandLogMax = 16;

// A worker that acknowledges nothing is told no more than so many times to let
// go of what it should not hold: its fault must not become ours.
constexpr size_t kStrayLogMax = 8;

absl::Status RequirePositive(const char* name, absl::Duration value) {
  if (value > absl::ZeroDuration()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      name, " must be positive, got ", absl::FormatDuration(value)));
}

std::pair<int, int64_t> QueueKey(const JobRecord& job) {
  return {-job.needs.priority, job.order};
}

absl::Status RequireAtLeastOne(const char* name, int value) {
  if (value >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " must be at least 1, got ", value));
}

GenerationKey KeyOf(const JobRecord& job) { return {job.id, job.generation}; }

// That more workers were asked for than can be of use; empty if not.
std::string SurplusNote(const JobRecord& job) {
  if (job.needs.max_workers <= job.needs.micro_batches) return "";
  return absl::StrCat("of max_workers=", job.needs.max_workers, " at most ",
                      job.needs.micro_batches,
                      " are used: a step has no more micro-batches");
}

// Whether `path` is where the job with this output directory puts its model or
// its checkpoints, or below.
bool IsInResultOf(absl::string_view output_directory, absl::string_view path) {
  if (!absl::ConsumePrefix(&path, output_directory)) return false;
  for (const absl::string_view result : {"/model", "/checkpoints"}) {
    absl::string_view rest = path;
    if (absl::ConsumePrefix(&rest, result) &&
        (rest.empty() || rest[0] == '/')) {
      return true;
    }
  }
  return false;
}

std::string SilentFor(absl::Duration silence) {
  return absl::StrCat("silent for ", absl::FormatDuration(absl::Trunc(
                                         silence, absl::Milliseconds(100))));
}

}  // namespace

absl::StatusOr<Coordinator> Coordinator::Create(
    const CoordinatorOptions& options, Moment now,
    std::vector<JobRecord> stored, Effects& effects) {
  RETURN_IF_ERROR(RequirePositive("lease", options.lease));
  RETURN_IF_ERROR(RequirePositive("forming_timeout", options.forming_timeout));
  RETURN_IF_ERROR(RequirePositive("step_bound", options.step_bound));
  RETURN_IF_ERROR(RequirePositive("reattach_window", options.reattach_window));
  RETURN_IF_ERROR(RequirePositive("worker_backoff", options.worker_backoff));
  if (options.worker_backoff_max < options.worker_backoff) {
    return absl::InvalidArgumentError(
        "worker_backoff_max must be at least worker_backoff");
  }
  RETURN_IF_ERROR(
      RequirePositive("lost_worker_retention", options.lost_worker_retention));
  RETURN_IF_ERROR(
      RequireAtLeastOne("worker_count_max", options.worker_count_max));
  RETURN_IF_ERROR(
      RequireAtLeastOne("unfinished_job_max", options.unfinished_job_max));
  RETURN_IF_ERROR(
      RequireAtLeastOne("finished_job_max", options.finished_job_max));
  if (options.incarnation.value < 1) {
    return absl::InvalidArgumentError("incarnation must be at least 1");
  }
  Coordinator coordinator(options);
  coordinator.Load(now, std::move(stored));
  coordinator.End(now, effects);
  return coordinator;
}

// Members of unfinished generations are believed to go on: each gets a record,
// as suspect, whose lease is the reattach window.
void Coordinator::Load(Moment now, std::vector<JobRecord> stored) {
  std::sort(
      stored.begin(), stored.end(), [](const JobRecord& a, const JobRecord& b) {
        return std::tie(a.end_time, a.order) < std::tie(b.end_time, b.order);
      });
  for (JobRecord& record : stored) {
    const JobId id = record.id;
    last_order_ = std::max(last_order_, record.order);
    job_by_request_[record.request_id] = id;
    Job& job = jobs_[id];
    job.record = std::move(record);
    dirty_jobs_.insert(id);
    if (IsFinal(job.record.state)) {
      finished_.push_back(id);
      continue;
    }
    queue_[QueueKey(job.record)] = id;
    if (job.record.state != JobState::kForming &&
        job.record.state != JobState::kRunning) {
      // Who still holds its last generation is told to let go when it comes.
      if (job.record.state == JobState::kRecovering) {
        job.last_failure = job.record.reason;
      }
      continue;
    }
    job.generation = Generation();
    job.generation->ranks.resize(job.record.members.size());
    job.generation->deadline =
        now.steady + options_.reattach_window + options_.forming_timeout;
    SetReason(job,
              "the coordinator started again; waiting for the job's workers "
              "to reattach");
    for (const WorkerId& member : job.record.members) {
      Worker& worker = workers_[member];
      worker.view.id = member;
      worker.view.contact = Contact::kSuspect;
      worker.view.reason = "awaited since the coordinator started again";
      worker.view.device.numeric_class = job.record.numeric_class;
      worker.view.device.has_bfloat16 = job.record.needs.bfloat16;
      worker.view.assigned = KeyOf(job.record);
      worker.view.connect_time = now.wall;
      worker.view.last_seen_time = now.wall;
      worker.last_seen = now.steady;
      worker.lease_end = now.steady + options_.reattach_window;
      worker.placeable_from = now.steady;
      dirty_workers_.insert(member);
    }
  }
}

void Coordinator::Begin(Moment now, Effects& effects) {
  last_now_ = now.steady;
  std::vector<WorkerId> overdue;
  for (const auto& [id, worker] : workers_) {
    if (worker.lease_end <= now.steady) overdue.push_back(id);
  }
  for (const WorkerId& id : overdue) {
    // Another's end may have been this one's too.
    Worker& worker = workers_.at(id);
    if (worker.lease_end <= now.steady) ExpireWorker(now, worker, effects);
  }
  std::vector<JobId> forming;
  for (const auto& [key, id] : queue_) {
    const Job& job = jobs_.at(id);
    if (job.record.state == JobState::kForming && job.generation.has_value() &&
        job.generation->deadline <= now.steady) {
      forming.push_back(id);
    }
  }
  for (const JobId& id : forming) ExpireForming(now, jobs_.at(id), effects);
}

void Coordinator::End(Moment now, Effects& effects) {
  // Most calls are beats, and change nothing of it.
  if (placement_stale_ || BackoffHasEnded(now)) PlaceJobs(now, effects);
  placement_stale_ = false;
  placed_at_ = now.steady;
  ForgetOldJobs(effects);
  for (const JobId& id : dirty_jobs_) {
    auto it = jobs_.find(id);
    if (it == jobs_.end()) continue;
    effects.push_back(PublishJob{it->second.record});
  }
  for (const WorkerId& id : dirty_workers_) {
    auto it = workers_.find(id);
    if (it == workers_.end()) continue;
    effects.push_back(PublishWorker{it->second.view});
  }
  dirty_jobs_.clear();
  dirty_workers_.clear();
}

void Coordinator::NoteStall(Moment now) {
  for (auto& [id, worker] : workers_) {
    if (worker.view.contact == Contact::kLost) continue;
    worker.lease_end = std::max(worker.lease_end, now.steady + options_.lease);
  }
}

void Coordinator::Tick(Moment now, Effects& effects) {
  Begin(now, effects);
  placement_stale_ = true;
  End(now, effects);
}

Instant Coordinator::NextDeadline() const {
  Instant next = InfiniteFuture();
  for (const auto& [id, worker] : workers_) {
    next = std::min(next, worker.lease_end);
  }
  bool waiting = false;
  for (const auto& [key, id] : queue_) {
    const Job& job = jobs_.at(id);
    if (job.record.state == JobState::kForming && job.generation.has_value()) {
      next = std::min(next, job.generation->deadline);
    }
    waiting |= !job.generation.has_value();
  }
  if (waiting) {
    // A back-off that ends lets a job be placed.  One that has ended does not
    // count: its worker is not placed for another reason, which an event ends.
    for (const auto& [id, worker] : workers_) {
      if (worker.failures_in_a_row > 0 && worker.placeable_from > last_now_) {
        next = std::min(next, worker.placeable_from);
      }
    }
  }
  return next;
}

// ---------------------------------------------------------------- jobs

absl::StatusOr<JobId> Coordinator::SubmitJob(Moment now, Submission submission,
                                             Effects& effects) {
  LS_CHECK(submission.spec != nullptr);
  Begin(now, effects);
  // End() also when an error is returned: time may have expired something.
  auto decide = [&]() -> absl::StatusOr<JobId> {
    if (auto it = job_by_request_.find(submission.request_id);
        it != job_by_request_.end()) {
      const JobRecord& known = jobs_.at(it->second).record;
      if (known.spec_digest == submission.spec_digest) return known.id;
      return absl::AlreadyExistsError(
          absl::StrCat("request_id ", submission.request_id,
                       " belongs to jobs/", known.id.value,
                       ", which was submitted with another spec; use a new "
                       "request_id for a new job"));
    }
    if (static_cast<int>(queue_.size()) >= options_.unfinished_job_max) {
      return absl::ResourceExhaustedError(
          absl::StrCat(queue_.size(),
                       " jobs are unfinished, which is the most that are "
                       "admitted; submit again when some have ended"));
    }
    for (const auto& [key, id] : queue_) {
      const JobRecord& other = jobs_.at(id).record;
      const std::string& theirs = other.needs.output_directory;
      const std::string& ours = submission.needs.output_directory;
      if (theirs == ours || IsInResultOf(theirs, ours) ||
          IsInResultOf(ours, theirs)) {
        return absl::FailedPreconditionError(absl::StrCat(
            "output_directory: ", ours,
            theirs == ours ? " belongs to" : " is in the way of",
            " the unfinished job jobs/", id.value,
            theirs == ours ? "" : absl::StrCat(", which writes to ", theirs),
            "; choose another, or cancel that job"));
      }
    }
    RETURN_IF_ERROR(CheckMemory(now, submission));
    LS_CHECK(jobs_.count(submission.id) == 0);
    Job& job = jobs_[submission.id];
    JobRecord& record = job.record;
    record.id = submission.id;
    record.order = ++last_order_;
    record.request_id = std::move(submission.request_id);
    record.spec_digest = std::move(submission.spec_digest);
    record.spec = std::move(submission.spec);
    record.needs = std::move(submission.needs);
    record.zero_stage = record.needs.zero_stage;
    record.create_time = now.wall;
    job_by_request_[record.request_id] = record.id;
    queue_[QueueKey(record)] = record.id;
    SetReason(job, "queued");
    Persist(job, effects);
    return record.id;
  };
  absl::StatusOr<JobId> result = decide();
  End(now, effects);
  return result;
}

absl::Status Coordinator::CancelJob(Moment now, const JobId& id,
                                    const std::string& reason,
                                    Effects& effects) {
  Begin(now, effects);
  auto decide = [&]() -> absl::Status {
    auto it = jobs_.find(id);
    if (it == jobs_.end()) {
      return absl::NotFoundError(
          absl::StrCat("no job has the name jobs/", id.value));
    }
    Job& job = it->second;
    if (job.record.state == JobState::kCancelled) return absl::OkStatus();
    if (IsFinal(job.record.state)) {
      return absl::FailedPreconditionError(absl::StrCat(
          "jobs/", id.value, " has ended: ", JobStateName(job.record.state)));
    }
    FinishJob(
        now, job, JobState::kCancelled,
        reason.empty() ? "cancelled" : absl::StrCat("cancelled: ", reason),
        effects);
    return absl::OkStatus();
  };
  const absl::Status status = decide();
  End(now, effects);
  return status;
}

void Coordinator::FinishJob(Moment now, Job& job, JobState state,
                            std::string reason, Effects& effects) {
  LS_CHECK(!IsFinal(job.record.state));
  job.record.state = state;
  job.record.end_time = now.wall;
  SetReason(job, std::move(reason));
  queue_.erase(QueueKey(job.record));
  finished_.push_back(job.record.id);
  job.generation.reset();
  Persist(job, effects);
  ReleaseMembers(now, job,
                 absl::StrCat("the job has ended: ", JobStateName(state)),
                 effects);
}

void Coordinator::HoldBack(Moment now, Worker& worker,
                           const GenerationKey& key) {
  if (worker.held_back_for == key) return;
  worker.held_back_for = key;
  placement_stale_ = true;
  const int doublings = std::min(worker.failures_in_a_row++, 30);
  worker.placeable_from =
      now.steady + std::min(options_.worker_backoff * (int64_t{1} << doublings),
                            options_.worker_backoff_max);
}

void Coordinator::FailGeneration(Moment now, Job& job, Worker& culprit,
                                 const Failure& failure, Effects& effects) {
  const std::string what =
      absl::StrCat("worker ", culprit.view.id.value, ": ", failure.message);
  if (failure.cause == Failure::Cause::kJob) {
    FinishJob(now, job, JobState::kFailed, what, effects);
    return;
  }
  if (failure.cause == Failure::Cause::kWorker) {
    HoldBack(now, culprit, KeyOf(job.record));
  }
  ++job.record.failure_count;
  job.generation.reset();
  job.record.state = JobState::kRecovering;
  job.last_failure = what;
  job.culprit_is_known = failure.cause == Failure::Cause::kWorker;
  SetReason(job, what);
  Persist(job, effects);
  ReleaseMembers(now, job, absl::StrCat("the generation failed: ", what),
                 effects);
}

void Coordinator::ReleaseMembers(Moment now, Job& job,
                                 const std::string& reason, Effects& effects) {
  const GenerationKey key = KeyOf(job.record);
  for (const WorkerId& member : job.record.members) {
    auto it = workers_.find(member);
    if (it == workers_.end() || it->second.view.assigned != key) continue;
    Worker& worker = it->second;
    if (worker.view.contact == Contact::kCutOff) {
      // Its lease is over, and no commit will prove any more that it lives.
      LoseWorker(now, worker, SilentFor(now.steady - worker.last_seen),
                 effects);
      continue;
    }
    Send(worker, Release{key, reason}, effects);
  }
}

void Coordinator::ForgetOldJobs(Effects& effects) {
  while (static_cast<int>(finished_.size()) > options_.finished_job_max) {
    const JobId id = finished_.front();
    finished_.pop_front();
    job_by_request_.erase(jobs_.at(id).record.request_id);
    jobs_.erase(id);
    effects.push_back(EraseJob{id});
  }
}

// ------------------------------------------------------------- workers

absl::Status Coordinator::OnHello(Moment now, SessionId session,
                                  const Hello& hello,
                                  const std::string& peer_address,
                                  Effects& effects) {
  LS_CHECK(session.value > 0 && worker_by_session_.count(session) == 0);
  Begin(now, effects);
  auto decide = [&]() -> absl::Status {
    const std::string& name = hello.worker.value;
    if (!IsResourceId(name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("worker name \"", name.substr(0, 100),
                       "\": expected 1 to 63 letters "
                       "a to z, digits, hyphens and dots, beginning with a "
                       "letter or digit"));
    }
    if (hello.incarnation.value < 1 || hello.stream < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("hello: incarnation=", hello.incarnation.value,
                       " and stream=", hello.stream, " must be at least 1"));
    }
    if (options_.incarnation < hello.coordinator_incarnation) {
      return absl::FailedPreconditionError(
          absl::StrCat("worker ", name, " has met coordinator incarnation ",
                       hello.coordinator_incarnation.value,
                       ", and this is only ", options_.incarnation.value,
                       ": this coordinator runs on an old copy of its store"));
    }
    auto it = workers_.find(hello.worker);
    if (it == workers_.end()) {
      if (static_cast<int>(workers_.size()) >= options_.worker_count_max &&
          !ForgetALostWorker(effects)) {
        return absl::ResourceExhaustedError(
            absl::StrCat(CountOf(options_.worker_count_max, "worker"),
                         " at most are admitted, and that many are known"));
      }
      it = workers_.try_emplace(hello.worker).first;
      it->second.view.id = hello.worker;
      it->second.placeable_from = now.steady;
    }
    Worker& worker = it->second;
    WorkerView& view = worker.view;
    if (hello.incarnation < view.incarnation) {
      return absl::FailedPreconditionError(absl::StrCat(
          "a newer incarnation of worker ", name, " has registered, from ",
          view.peer_address, "; this process must end"));
    }
    // A record made by Load() knows no incarnation yet; it stands for any.
    const bool same =
        hello.incarnation == view.incarnation || view.incarnation.value == 0;
    if (same && hello.stream <= worker.stream) {
      return absl::AbortedError(absl::StrCat(
          "worker ", name, " has opened a newer stream than ", hello.stream));
    }
    if (!same && view.contact == Contact::kAttached) {
      return absl::AlreadyExistsError(
          absl::StrCat("the name ", name, " belongs to a live worker, process ",
                       view.device.process_id, " on ", view.device.host, " (",
                       view.peer_address,
                       "); start this one with another --name, or stop "
                       "that one"));
    }
    CloseSessionOf(worker, absl::AbortedError("a newer stream took over"),
                   effects);
    if (!same) {
      LosePlace(now, worker, "its daemon was restarted", effects);
      // What its former self held died with it.
      view.assigned.reset();
      worker.last_sequence = 0;
      worker.unacked.clear();
    }
    view.incarnation = hello.incarnation;
    view.contact = Contact::kAttached;
    view.reason.clear();
    view.device = hello.device;
    view.peer_address = peer_address;
    view.status = hello.status;
    view.connect_time = now.wall;
    worker.stream = hello.stream;
    worker.session = session;
    worker_by_session_[session] = hello.worker;
    placement_stale_ = true;
    NoteAlive(now, worker);

    if (hello.coordinator_incarnation < options_.incarnation) {
      // It counts another coordinator's commands.
      view.status.applied_sequence = 0;
    }
    // It may be known to have applied more than a record remembers that was
    // forgotten in between.
    worker.last_sequence =
        std::max(worker.last_sequence, view.status.applied_sequence);
    effects.push_back(SendWelcome{
        session,
        Welcome{options_.incarnation, options_.lease, options_.lease / 4}});
    std::erase_if(worker.unacked, [&](const Command& c) {
      return c.sequence <= worker.view.status.applied_sequence;
    });
    for (Command& command : worker.unacked) {
      // What is over must be neither begun nor committed so late.
      const GenerationKey key = lockstep::KeyOf(command.body);
      if (!std::holds_alternative<Release>(command.body) && !IsActive(key)) {
        command.body = Release{key, "the generation is over"};
      }
      effects.push_back(SendCommand{session, command});
    }
    Reconcile(now, worker, effects);
    return absl::OkStatus();
  };
  const absl::Status status = decide();
  End(now, effects);
  return status;
}

void Coordinator::OnStatus(Moment now, SessionId session,
                           const WorkerStatus& status, Effects& effects) {
  Begin(now, effects);
  Worker* worker = FindBySession(session);
  if (worker != nullptr && status.applied_sequence > worker->last_sequence) {
    CloseSessionOf(*worker,
                   absl::InvalidArgumentError(absl::StrCat(
                       "status: applied_sequence=", status.applied_sequence,
                       ", but only ", worker->last_sequence, " were sent")),
                   effects);
    worker->view.contact = Contact::kSuspect;
    worker->view.reason = "its stream was ended: it broke the protocol";
    dirty_workers_.insert(worker->view.id);
    placement_stale_ = true;
    worker = nullptr;
  }
  if (worker != nullptr) {
    const WorkerStatus& before = worker->view.status;
    placement_stale_ |= before.trainer_ready != status.trainer_ready ||
                        before.held.has_value() != status.held.has_value() ||
                        before.applied_sequence != status.applied_sequence;
    worker->view.status = status;
    NoteAlive(now, *worker);
    std::erase_if(worker->unacked, [&](const Command& c) {
      return c.sequence <= status.applied_sequence;
    });
    Reconcile(now, *worker, effects);
  }
  End(now, effects);
}

void Coordinator::OnStepsCommitted(Moment now, SessionId session,
                                   const GenerationKey& key,
                                   int64_t committed_step_count,
                                   Effects& effects) {
  Begin(now, effects);
  if (Worker* worker = FindBySession(session); worker != nullptr) {
    NoteAlive(now, *worker);
    Job* job = FindByKey(key);
    if (job != nullptr && job->generation.has_value() &&
        worker->view.assigned == key) {
      NoteCommit(now, *job, committed_step_count);
    }
  }
  End(now, effects);
}

void Coordinator::OnSessionClosed(Moment now, SessionId session, bool leaving,
                                  Effects& effects) {
  Begin(now, effects);
  if (Worker* worker = FindBySession(session); worker != nullptr) {
    worker_by_session_.erase(session);
    worker->session = SessionId{};
    if (leaving) {
      LoseWorker(now, *worker, "its daemon was stopped", effects);
    } else {
      worker->view.contact = Contact::kSuspect;
      worker->view.reason = "its stream broke";
      dirty_workers_.insert(worker->view.id);
      placement_stale_ = true;
    }
  }
  End(now, effects);
}

absl::Duration Coordinator::StepBound(const Generation& generation) const {
  if (generation.longest_gap == absl::ZeroDuration()) {
    return options_.step_bound;
  }
  return std::min(options_.step_bound,
                  std::max(options_.lease, 10 * generation.longest_gap));
}

void Coordinator::ExpireWorker(Moment now, Worker& worker, Effects& effects) {
  if (worker.view.contact == Contact::kLost) {
    Forget(worker, effects);
    return;
  }
  // A step that another rank committed after this worker was last heard of
  // proves that it was alive then: the commit needs every rank.
  if (worker.view.assigned.has_value()) {
    Job* job = FindByKey(*worker.view.assigned);
    if (job != nullptr && job->record.state == JobState::kRunning &&
        job->generation.has_value() &&
        job->generation->last_commit.has_value() &&
        worker.last_seen < *job->generation->last_commit) {
      const Instant bound =
          *job->generation->last_commit + StepBound(*job->generation);
      if (now.steady < bound) {
        CloseSessionOf(
            worker, absl::UnavailableError("silent beyond its lease"), effects);
        worker.view.contact = Contact::kCutOff;
        worker.view.reason = "silent, but its generation commits steps";
        worker.lease_end = bound;
        dirty_workers_.insert(worker.view.id);
        placement_stale_ = true;
        return;
      }
    }
  }
  LoseWorker(now, worker, SilentFor(now.steady - worker.last_seen), effects);
}

void Coordinator::NoteAlive(Moment now, Worker& worker) {
  worker.view.last_seen_time = now.wall;
  worker.last_seen = now.steady;
  worker.lease_end = now.steady + options_.lease;
  dirty_workers_.insert(worker.view.id);
}

bool Coordinator::ForgetALostWorker(Effects& effects) {
  auto oldest = workers_.end();
  for (auto it = workers_.begin(); it != workers_.end(); ++it) {
    if (it->second.view.contact == Contact::kLost &&
        (oldest == workers_.end() ||
         it->second.lease_end < oldest->second.lease_end)) {
      oldest = it;
    }
  }
  if (oldest == workers_.end()) return false;
  Forget(oldest->second, effects);
  return true;
}

void Coordinator::Forget(Worker& worker, Effects& effects) {
  const WorkerId id = worker.view.id;
  dirty_workers_.erase(id);
  workers_.erase(id);
  effects.push_back(RetractWorker{id});
}

void Coordinator::LoseWorker(Moment now, Worker& worker, const std::string& why,
                             Effects& effects) {
  CloseSessionOf(worker, absl::UnavailableError(why), effects);
  worker.view.contact = Contact::kLost;
  worker.view.reason = why;
  worker.lease_end = now.steady + options_.lost_worker_retention;
  dirty_workers_.insert(worker.view.id);
  placement_stale_ = true;
  LosePlace(now, worker, why, effects);
  worker.view.assigned.reset();
}

void Coordinator::LosePlace(Moment now, Worker& worker, const std::string& why,
                            Effects& effects) {
  if (!worker.view.assigned.has_value()) return;
  Job* job = FindByKey(*worker.view.assigned);
  if (job == nullptr) return;
  if (job->generation.has_value()) {
    FailGeneration(now, *job, worker,
                   {.cause = Failure::Cause::kWorker,
                    .code = absl::StatusCode::kUnavailable,
                    .message = why},
                   effects);
  } else if (job->record.state == JobState::kRecovering) {
    Blame(*job, worker, why);
  }
}

void Coordinator::Blame(Job& job, const Worker& worker,
                        const std::string& why) {
  if (job.culprit_is_known) return;
  job.culprit_is_known = true;
  job.last_failure = absl::StrCat("worker ", worker.view.id.value, ": ", why);
  placement_stale_ = true;  // The reason says it.
}

void Coordinator::Reconcile(Moment now, Worker& worker, Effects& effects) {
  WorkerView& view = worker.view;
  const auto& held = view.status.held;
  auto in_log = [&](const GenerationKey& key, bool release_only) {
    return std::any_of(
        worker.unacked.begin(), worker.unacked.end(), [&](const Command& c) {
          return lockstep::KeyOf(c.body) == key &&
                 (!release_only || std::holds_alternative<Release>(c.body));
        });
  };

  // Its report counts before anything is concluded from what it holds.
  if (held.has_value() && view.assigned == held->key) {
    if (Job* job = FindByKey(held->key); job != nullptr) {
      OnMemberReport(now, *job, worker, effects);
    }
  }

  const bool place_is_active =
      view.assigned.has_value() && IsActive(*view.assigned);
  if (held.has_value() && !(place_is_active && view.assigned == held->key) &&
      held->phase != Phase::kAborting && !in_log(held->key, true) &&
      worker.unacked.size() < kStrayLogMax) {
    Send(worker, Release{held->key, "the generation is over"}, effects);
  }
  if (view.assigned.has_value() &&
      !(held.has_value() && held->key == *view.assigned) &&
      !in_log(*view.assigned, false)) {
    // It holds nothing of its place, and nothing under way will change that.
    if (place_is_active) {
      LosePlace(now, worker,
                view.status.last_trainer_death.empty()
                    ? "it no longer holds its place in the generation"
                    : absl::StrCat("it no longer holds its place in the "
                                   "generation; its last trainer: ",
                                   view.status.last_trainer_death),
                effects);
      // LosePlace sent it a Release, which it will acknowledge.
    } else {
      view.assigned.reset();
      dirty_workers_.insert(view.id);
    }
  }
}

void Coordinator::OnMemberReport(Moment now, Job& job, Worker& worker,
                                 Effects& effects) {
  const HeldGeneration& held = *worker.view.status.held;
  if (IsFinal(job.record.state)) return;
  if (held.phase == Phase::kFailed) {
    const Failure failure =
        held.failure.value_or(Failure{.cause = Failure::Cause::kWorker,
                                      .message = "failed without saying why"});
    // A generation that ended by one rank's broken connection may turn out to
    // have ended by the job's own fault, or that of another worker.
    if (job.generation.has_value() || failure.cause == Failure::Cause::kJob) {
      FailGeneration(now, job, worker, failure, effects);
    } else if (failure.cause == Failure::Cause::kWorker) {
      HoldBack(now, worker, held.key);
      Blame(job, worker, failure.message);
    }
    return;
  }
  if (!job.generation.has_value()) return;
  const auto world = static_cast<int>(job.record.members.size());
  if (held.rank < 0 || held.rank >= world ||
      job.record.members[held.rank] != worker.view.id) {
    FailGeneration(now, job, worker,
                   {.cause = Failure::Cause::kWorker,
                    .code = absl::StatusCode::kInternal,
                    .message = absl::StrCat("holds rank ", held.rank,
                                            ", which is not its own")},
                   effects);
    return;
  }
  Generation& generation = *job.generation;
  if (generation.ranks[held.rank].held != held) {
    generation.ranks[held.rank].held = held;
    dirty_jobs_.insert(job.record.id);
  }
  job.record.max_steps = std::max(job.record.max_steps, held.max_steps);
  if (held.rank == 0 &&
      (held.phase == Phase::kTraining || held.phase == Phase::kOutputReady ||
       held.phase == Phase::kFinished)) {
    NoteLedger(job, held);
  }
  NoteCommit(now, job, held.committed_step_count);
  if (held.rank == 0 && held.phase == Phase::kFinished) {
    FinishJob(now, job, JobState::kCompleted, "", effects);
    return;
  }
  if (job.record.state == JobState::kForming) AdvanceForming(now, job, effects);
  if (job.record.state == JobState::kRunning) AdvanceRunning(job, effects);
}

void Coordinator::NoteLedger(Job& job, const HeldGeneration& held) {
  JobRecord& record = job.record;
  if (!record.ledger.empty() &&
      record.ledger.back().generation == record.generation) {
    return;
  }
  record.ledger = held.ledger;
  LedgerRow& own = record.ledger.emplace_back();
  own.generation = record.generation;
  own.first_step = held.first_step;
  own.end_step = std::max(held.first_step, record.committed_step_count);
  own.workers = record.members;
  const auto world = static_cast<int>(record.members.size());
  for (int rank = 0; rank < world; ++rank) {
    own.micro_batches.push_back(
        MicroBatchesOf(record.needs.micro_batches, rank, world));
  }
}

void Coordinator::NoteCommit(Moment now, Job& job,
                             int64_t committed_step_count) {
  if (committed_step_count <= job.record.committed_step_count) return;
  job.record.committed_step_count = committed_step_count;
  std::vector<LedgerRow>& ledger = job.record.ledger;
  if (!ledger.empty() && ledger.back().generation == job.record.generation) {
    ledger.back().end_step =
        std::max(ledger.back().end_step, committed_step_count);
  }
  std::optional<Instant>& last = job.generation->last_commit;
  if (last.has_value()) {
    job.generation->longest_gap =
        std::max(job.generation->longest_gap, now.steady - *last);
  }
  last = now.steady;
  dirty_jobs_.insert(job.record.id);
  for (const WorkerId& member : job.record.members) {
    auto it = workers_.find(member);
    if (it != workers_.end()) it->second.failures_in_a_row = 0;
  }
  if (committed_step_count > job.record.best_step_count) {
    job.record.best_step_count = committed_step_count;
    job.record.failure_count = 0;
  }
}

// ---------------------------------------------------------- generations

void Coordinator::AdvanceForming(Moment now, Job& job, Effects& effects) {
  Generation& generation = *job.generation;
  const GenerationKey key = KeyOf(job.record);
  const auto world = static_cast<int>(generation.ranks.size());
  bool all_joined = true;
  bool all_training = true;
  for (const Generation::Rank& rank : generation.ranks) {
    const bool known = rank.held.has_value();
    all_joined &= known && rank.held->phase != Phase::kPreparing;
    all_training &= known && (rank.held->phase == Phase::kTraining ||
                              rank.held->phase == Phase::kOutputReady);
  }
  if (all_training) {
    job.record.state = JobState::kRunning;
    if (!job.record.start_time.has_value()) job.record.start_time = now.wall;
    SetReason(job, SurplusNote(job.record));
    Persist(job, effects);
    return;
  }
  SetReason(job, FormingReason(job));
  if (!all_joined) return;

  // A rank that is beyond JOINED has had its Start, from this coordinator or
  // the one before: the content is a function of what the ranks report.
  for (int to = 0; to < world; ++to) {
    Generation::Rank& rank = generation.ranks[to];
    if (rank.start_sent || rank.held->phase != Phase::kJoined) continue;
    Start start;
    start.key = key;
    start.nonce = generation.ranks[0].held->nonce;
    start.first_step = generation.ranks[0].held->first_step;
    for (int from = 0; from < world; ++from) {
      const auto& addresses = generation.ranks[from].held->addresses;
      start.peer_addresses.push_back(
          from != to && to < static_cast<int>(addresses.size()) ? addresses[to]
                                                                : "");
      start.micro_batches.push_back(
          MicroBatchesOf(job.record.needs.micro_batches, from, world));
    }
    rank.start_sent = true;
    generation.deadline = now.steady + options_.forming_timeout;
    Send(workers_.at(job.record.members[to]), std::move(start), effects);
  }
}

void Coordinator::AdvanceRunning(Job& job, Effects& effects) {
  Generation& generation = *job.generation;
  bool all_known = true;
  bool all_ready = true;
  std::string details;
  for (size_t i = 0; i < generation.ranks.size(); ++i) {
    const auto& held = generation.ranks[i].held;
    all_known &= held.has_value();
    all_ready &= held.has_value() && held->phase == Phase::kOutputReady;
    if (held.has_value() && !held->detail.empty()) {
      absl::StrAppend(&details, details.empty() ? "" : "; ", "worker ",
                      job.record.members[i].value, ": ", held->detail);
    }
  }
  if (all_ready && details.empty()) {
    details = absl::StrCat("waiting for worker ", job.record.members[0].value,
                           " to commit the output");
  }
  if (details.empty()) details = SurplusNote(job.record);
  // Until all are back after a restart, the reason says so.
  if (all_known) SetReason(job, std::move(details));
  if (!all_ready || generation.commit_sent) return;
  generation.commit_sent = true;
  Send(workers_.at(job.record.members[0]), CommitOutput{KeyOf(job.record)},
       effects);
}

Coordinator::Behind Coordinator::WhoIsBehind(const Generation& generation) {
  auto phase_of = [&](size_t rank) {
    const auto& held = generation.ranks[rank].held;
    return held.has_value() ? held->phase : Phase::kPreparing;
  };
  Behind behind;
  for (size_t i = 0; i < generation.ranks.size(); ++i) {
    if (phase_of(i) == Phase::kPreparing) behind.ranks.push_back(i);
  }
  if (!behind.ranks.empty()) return behind;
  behind.in_connecting = true;
  for (size_t i = 0; i < generation.ranks.size(); ++i) {
    if (phase_of(i) < Phase::kTraining) behind.ranks.push_back(i);
  }
  return behind;
}

std::string Coordinator::FormingReason(const Job& job) {
  const Generation& generation = *job.generation;
  const Behind behind = WhoIsBehind(generation);
  std::vector<std::string> names;
  for (const size_t rank : behind.ranks) {
    names.push_back(job.record.members[rank].value);
    const auto& held = generation.ranks[rank].held;
    if (held.has_value() && !held->detail.empty()) {
      absl::StrAppend(&names.back(), " (", held->detail, ")");
    }
  }
  return absl::StrCat(generation.ranks.size() - names.size(), "/",
                      generation.ranks.size(),
                      behind.in_connecting ? " connected" : " prepared",
                      names.empty() ? "" : ", waiting for ", JoinNames(names));
}

void Coordinator::ExpireForming(Moment now, Job& job, Effects& effects) {
  // The first one behind stands for all; the reason names them.
  const Behind behind = WhoIsBehind(*job.generation);
  const size_t culprit = behind.ranks.empty() ? 0 : behind.ranks.front();
  auto it = workers_.find(job.record.members[culprit]);
  LS_CHECK(it != workers_.end());
  FailGeneration(
      now, job, it->second,
      {.cause = Failure::Cause::kWorker,
       .code = absl::StatusCode::kDeadlineExceeded,
       .message = absl::StrCat("forming took longer than ",
                               absl::FormatDuration(options_.forming_timeout),
                               ": ", FormingReason(job))},
      effects);
}

// -------------------------------------------------------------- sending

void Coordinator::Send(Worker& worker, CommandBody body, Effects& effects) {
  // A worker that is gone for good has no log; a lost one that comes back is
  // told by Reconcile().
  if (worker.view.contact == Contact::kLost) return;
  LS_CHECK(worker.unacked.size() < kCommandLogMax);
  worker.unacked.push_back({++worker.last_sequence, std::move(body)});
  if (worker.session.value != 0) {
    effects.push_back(SendCommand{worker.session, worker.unacked.back()});
  }
}

void Coordinator::CloseSessionOf(Worker& worker, absl::Status status,
                                 Effects& effects) {
  if (worker.session.value == 0) return;
  worker_by_session_.erase(worker.session);
  effects.push_back(CloseSession{worker.session, std::move(status)});
  worker.session = SessionId{};
}

void Coordinator::SetReason(Job& job, std::string reason) {
  if (job.record.reason == reason) return;
  job.record.reason = std::move(reason);
  dirty_jobs_.insert(job.record.id);
}

void Coordinator::Persist(const Job& job, Effects& effects) {
  effects.push_back(PersistJob{job.record});
  dirty_jobs_.insert(job.record.id);
  placement_stale_ = true;
}

// ------------------------------------------------------------- look-ups

Coordinator::Job* Coordinator::FindByKey(const GenerationKey& key) {
  auto it = jobs_.find(key.job);
  if (it == jobs_.end() || it->second.record.generation != key.generation) {
    return nullptr;
  }
  return &it->second;
}

bool Coordinator::IsActive(const GenerationKey& key) {
  const Job* job = FindByKey(key);
  return job != nullptr && job->generation.has_value();
}

Coordinator::Worker* Coordinator::FindBySession(SessionId session) {
  auto it = worker_by_session_.find(session);
  return it == worker_by_session_.end() ? nullptr : &workers_.at(it->second);
}

const JobRecord* Coordinator::FindJob(const JobId& id) const {
  auto it = jobs_.find(id);
  return it == jobs_.end() ? nullptr : &it->second.record;
}

std::vector<JobId> Coordinator::JobIds() const {
  std::vector<JobId> ids;
  for (const auto& [id, job] : jobs_) ids.push_back(id);
  return ids;
}

std::optional<int> Coordinator::RankOf(SessionId session,
                                       const GenerationKey& key) const {
  auto it = worker_by_session_.find(session);
  if (it == worker_by_session_.end()) return std::nullopt;
  auto job = jobs_.find(key.job);
  if (job == jobs_.end() || job->second.record.generation != key.generation) {
    return std::nullopt;
  }
  const auto& members = job->second.record.members;
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i] == it->second) return static_cast<int>(i);
  }
  return std::nullopt;
}

}  // namespace lockstep
