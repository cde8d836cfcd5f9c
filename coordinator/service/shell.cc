#include "coordinator/service/shell.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/job_plan.h"
#include "common/log.h"
#include "common/serialize.h"
#include "common/spec.h"
#include "common/status.h"
#include "coordinator/service/named_thread.h"
#include "coordinator/service/names.h"

namespace lockstep {
namespace {

std::optional<int> ZeroStageOf(const v1::JobSpec& spec) {
  const v1::ParallelSpec& parallel = spec.parallel();
  if (!parallel.has_zero_stage()) return std::nullopt;
  return parallel.zero_stage();
}

absl::Status Stopping() {
  return absl::UnavailableError("the coordinator stops; try again");
}

// Without i, l, o and u, which are taken for others.
constexpr char kBase32[] = "0123456789abcdefghjkmnpqrstvwxyz";

}  // namespace

absl::StatusOr<std::unique_ptr<Shell>> Shell::Create(Options options,
                                                     Store& store,
                                                     Clock& clock) {
  std::unique_ptr<Shell> shell(new Shell(std::move(options), store, clock));
  RETURN_IF_ERROR(shell->Start());
  return shell;
}

absl::Status Shell::Start() {
  ASSIGN_OR_RETURN(StoreContent content, store_.Load());
  incarnation_ = content.incarnation;
  // Above all commits of the incarnations before.
  commit_ = incarnation_.value << 32;
  board_ = std::make_unique<Board>(commit_);

  std::vector<JobRecord> records;
  for (StoredJob& stored : content.jobs) {
    v1::JobSpec spec;
    if (!spec.ParseFromString(*stored.record.spec)) {
      return absl::DataLossError(
          absl::StrCat("store: the spec of ", JobName(stored.record.id),
                       " is not a JobSpec; restore a copy of the store"));
    }
    JobState& job = jobs_[stored.record.id];
    job.progress = ProgressTracker::FromStored(stored.progress);
    job.tokens_per_step = TokensPerStep(spec);
    stored.record.needs.zero_stage = ZeroStageOf(spec);
    stored.record.needs.memory = MemoryNeedsOf(spec);
    records.push_back(std::move(stored.record));
  }
  const size_t job_count = records.size();

  CoordinatorOptions core_options = options_.core;
  core_options.incarnation = incarnation_;
  Effects effects;
  absl::StatusOr<Coordinator> core = Coordinator::Create(
      core_options, clock_.NowMoment(), std::move(records), effects);
  if (!core.ok()) return core.status();
  LOG(INFO) << "coordinator loaded" << Field("incarnation", incarnation_.value)
            << Field("jobs", job_count);
  {
    MutexLock lock(&mutex_);
    core_ = std::make_unique<Coordinator>(*std::move(core));
  }
  // Here and now: whoever asks once this serves must find the stored jobs.
  std::vector<Item> items;
  for (Effect& effect : effects) items.push_back(std::move(effect));
  RETURN_IF_ERROR(CarryOutAll(items));
  outbox_thread_ = StartThread("ls-outbox", [this] { RunOutbox(); });
  timer_thread_ = StartThread("ls-timer", [this] { RunTimer(); });
  return absl::OkStatus();
}

Shell::~Shell() { Stop(); }

void Shell::Stop() {
  {
    MutexLock lock(&mutex_);
    if (refusal_.ok()) refusal_ = Stopping();
  }
  outbox_changed_.Signal();
  timer_changed_.Signal();
  if (outbox_thread_.joinable()) outbox_thread_.join();
  if (timer_thread_.joinable()) timer_thread_.join();
}

// An effect is news: a deadline may have come nearer.
void Shell::Queue(Effects effects) {
  if (effects.empty()) return;
  for (Effect& effect : effects) outbox_.push_back(std::move(effect));
  outbox_changed_.Signal();
  timer_changed_.Signal();
}

// ----------------------------------------------------------------- events

JobId Shell::DrawJobId() {
  while (true) {
    const uint64_t bits = options_.random();
    std::string id = "j-";
    for (int i = 0; i < 10; ++i) id += kBase32[bits >> (5 * i) & 31];
    if (core_->FindJob({id}) == nullptr) return {id};
  }
}

std::function<void(const absl::Status&)> Shell::ReplyWithJob(
    absl::StatusOr<JobId> job,
    std::function<void(absl::StatusOr<JobSnapshot>)> done) {
  return [this, job = std::move(job),
          done = std::move(done)](const absl::Status& durable) {
    if (!durable.ok()) {
      done(durable);
    } else if (!job.ok()) {
      done(job.status());
    } else {
      done(board_->GetJob(*job));
    }
  };
}

void Shell::SubmitJob(JobRequest request,
                      std::function<void(absl::StatusOr<JobSnapshot>)> done) {
  Coordinator::Submission submission;
  submission.request_id = std::move(request.request_id);
  submission.spec_digest = std::move(request.spec_digest);
  submission.spec = std::make_shared<const std::string>(
      SerializeDeterministically(request.spec));
  const v1::ParallelSpec& parallel = request.spec.parallel();
  submission.needs = {
      .priority = request.spec.priority(),
      .min_workers = parallel.min_workers(),
      .max_workers = parallel.max_workers(),
      .micro_batches = static_cast<int>(MicroBatchesPerStep(request.spec)),
      .failures_max = parallel.failures_max(),
      .output_directory = request.spec.output_directory(),
      .bfloat16 =
          request.spec.numerics().precision() == v1::NumericsSpec::BFLOAT16,
      .zero_stage = ZeroStageOf(request.spec),
      .memory = MemoryNeedsOf(request.spec)};
  submission.plan = std::move(request.plan);
  absl::Status refusal;
  {
    MutexLock lock(&mutex_);
    refusal = refusal_;
    if (refusal.ok()) {
      submission.id = DrawJobId();
      Effects effects;
      absl::StatusOr<JobId> job =
          core_->SubmitJob(AwakeNow(), std::move(submission), effects);
      Queue(std::move(effects));
      outbox_.push_back(ReplyWithJob(std::move(job), std::move(done)));
      outbox_changed_.Signal();
    }
  }
  if (!refusal.ok()) done(refusal);
}

void Shell::CancelJob(const JobId& job, const std::string& reason,
                      std::function<void(absl::StatusOr<JobSnapshot>)> done) {
  absl::Status refusal;
  {
    MutexLock lock(&mutex_);
    refusal = refusal_;
    if (refusal.ok()) {
      Effects effects;
      const absl::Status status =
          core_->CancelJob(AwakeNow(), job, reason, effects);
      Queue(std::move(effects));
      outbox_.push_back(ReplyWithJob(
          status.ok() ? absl::StatusOr<JobId>(job) : status, std::move(done)));
      outbox_changed_.Signal();
    }
  }
  if (!refusal.ok()) done(refusal);
}

SessionId Shell::OpenSession(const Hello& hello,
                             const std::string& peer_address,
                             std::shared_ptr<SessionSink> sink) {
  absl::Status refusal;
  SessionId session;
  {
    MutexLock lock(&mutex_);
    refusal = refusal_;
    if (refusal.ok()) {
      session = {++last_session_.value};
      {
        MutexLock sinks_lock(&sinks_mutex_);
        sinks_[session] = sink;
      }
      Effects effects;
      const absl::Status status =
          core_->OnHello(AwakeNow(), session, hello, peer_address, effects);
      if (!status.ok()) effects.push_back(CloseSession{session, status});
      Queue(std::move(effects));
    }
  }
  if (!refusal.ok()) sink->Close(refusal);
  return session;
}

void Shell::OnStatus(SessionId session, const WorkerStatus& status) {
  MutexLock lock(&mutex_);
  if (!refusal_.ok()) return;
  Effects effects;
  core_->OnStatus(AwakeNow(), session, status, effects);
  Queue(std::move(effects));
}

void Shell::OnStepReports(SessionId session, const WorkerId& worker,
                          ReportBatch batch) {
  StoreSteps steps;
  steps.session = session;
  steps.last_sequence = batch.last_sequence;
  steps.done = std::move(batch.done);
  absl::Status refusal;
  {
    MutexLock lock(&mutex_);
    refusal = refusal_;
    if (refusal.ok()) {
      std::map<GenerationKey, int64_t> committed;
      for (auto& report : batch.reports) {
        const absl::StatusOr<JobId> job = ParseJobName("job", report->job());
        if (!job.ok()) continue;
        const GenerationKey key = {*job, report->generation()};
        if (core_->RankOf(session, key) != report->rank()) continue;
        report->set_worker(WorkerName(worker));
        steps.rows.push_back(
            {.key = key, .step = report->step(), .rank = report->rank()});
        int64_t& count = committed[key];
        count = std::max(count, report->step() + 1);
        steps.reports.push_back(std::move(report));
      }
      // Before what the core concludes, so that a job never ends ahead of the
      // rows that led to it.
      outbox_.push_back(std::move(steps));
      outbox_changed_.Signal();
      Effects effects;
      for (const auto& [key, count] : committed) {
        core_->OnStepsCommitted(AwakeNow(), session, key, count, effects);
      }
      Queue(std::move(effects));
    }
  }
  if (!refusal.ok()) steps.done();
}

void Shell::OnSessionClosed(SessionId session, bool leaving) {
  {
    MutexLock lock(&sinks_mutex_);
    sinks_.erase(session);
  }
  MutexLock lock(&mutex_);
  // All sessions end when the coordinator stops: that is no news of workers.
  if (!refusal_.ok()) return;
  Effects effects;
  core_->OnSessionClosed(AwakeNow(), session, leaving, effects);
  Queue(std::move(effects));
}

// ----------------------------------------------------------------- outbox

void Shell::RunOutbox() {
  while (true) {
    std::vector<Item> items;
    absl::Status refusal;
    {
      MutexLock lock(&mutex_);
      while (outbox_.empty() && refusal_.ok()) outbox_changed_.Wait(&mutex_);
      items.swap(outbox_);
      refusal = refusal_;
    }
    if (items.empty()) {
      // Stopped, and all is done: nothing is queued once refusal_ is set.
      CloseAll(refusal);
      return;
    }
    if (const absl::Status status = CarryOutAll(items); !status.ok()) {
      Fail(status, std::move(items));
      return;
    }
  }
}

absl::Status Shell::CarryOutAll(std::vector<Item>& items) {
  RETURN_IF_ERROR(StoreAll(items));
  for (Item& item : items) CarryOut(item);
  while (!stale_jobs_.empty()) PublishJob(jobs_.at(*stale_jobs_.begin()));
  return absl::OkStatus();
}

// All that `items` want stored, in one transaction; then shows the steps.
absl::Status Shell::StoreAll(std::vector<Item>& items) {
  std::vector<StoreChange> changes;
  std::vector<std::shared_ptr<v1::StepMetrics>> reports;
  std::vector<size_t> report_changes;  // Where in `changes` each report is.
  for (Item& item : items) {
    if (auto* effect = std::get_if<Effect>(&item)) {
      if (auto* persist = std::get_if<PersistJob>(effect)) {
        changes.push_back(*persist);
      } else if (auto* erase = std::get_if<EraseJob>(effect)) {
        changes.push_back(*erase);
      }
    } else if (auto* steps = std::get_if<StoreSteps>(&item)) {
      for (size_t i = 0; i < steps->rows.size(); ++i) {
        StepRow row = std::move(steps->rows[i]);
        row.metrics = steps->reports[i]->SerializeAsString();
        auto job = jobs_.find(row.key.job);
        if (job != jobs_.end() &&
            job->second.progress.Add(*steps->reports[i])) {
          stale_jobs_.insert(row.key.job);
        }
        report_changes.push_back(changes.size());
        reports.push_back(std::move(steps->reports[i]));
        changes.push_back(std::move(row));
      }
    }
  }
  for (const JobId& id : stale_jobs_) {
    changes.push_back(StoreProgress{id, jobs_.at(id).progress.Serialize()});
  }
  if (changes.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<bool> changed,
                   store_.Apply(changes, ++commit_));
  std::map<JobId, std::vector<StepSnapshot>> rows_by_job;
  for (size_t i = 0; i < reports.size(); ++i) {
    if (!changed[report_changes[i]]) continue;  // A repeat.
    rows_by_job[std::get<StepRow>(changes[report_changes[i]]).key.job]
        .push_back(std::move(reports[i]));
  }
  if (!rows_by_job.empty()) board_->PublishSteps(rows_by_job, commit_);
  return absl::OkStatus();
}

void Shell::CarryOut(Item& item) {
  if (auto* effect = std::get_if<Effect>(&item)) {
    CarryOut(*effect);
  } else if (auto* steps = std::get_if<StoreSteps>(&item)) {
    if (auto sink = SinkOf(steps->session)) {
      sink->SendReportsAck(steps->last_sequence);
    }
    steps->done();
  } else {
    std::get<Reply>(item)(absl::OkStatus());
  }
}

void Shell::CarryOut(Effect& effect) {
  if (const auto* publish = std::get_if<lockstep::PublishJob>(&effect)) {
    JobState& job = StateOf(publish->record);
    job.record = publish->record;
    PublishJob(job);
  } else if (const auto* worker = std::get_if<PublishWorker>(&effect)) {
    board_->PublishWorker(worker->view);
  } else if (const auto* retract = std::get_if<RetractWorker>(&effect)) {
    board_->RetractWorker(retract->worker);
  } else if (const auto* erase = std::get_if<EraseJob>(&effect)) {
    jobs_.erase(erase->job);
    stale_jobs_.erase(erase->job);
    board_->EraseJob(erase->job);
  } else if (const auto* welcome = std::get_if<SendWelcome>(&effect)) {
    if (auto sink = SinkOf(welcome->session)) {
      sink->SendWelcome(welcome->welcome);
    }
  } else if (const auto* send = std::get_if<SendCommand>(&effect)) {
    if (auto sink = SinkOf(send->session)) sink->SendCommand(send->command);
  } else if (const auto* close = std::get_if<CloseSession>(&effect)) {
    if (auto sink = SinkOf(close->session)) sink->Close(close->status);
  }
  // PersistJob was carried out by StoreAll().
}

Shell::JobState& Shell::StateOf(const JobRecord& record) {
  auto [it, added] = jobs_.try_emplace(record.id);
  if (added) {
    v1::JobSpec spec;
    LS_CHECK(spec.ParseFromString(*record.spec));
    it->second.tokens_per_step = TokensPerStep(spec);
  }
  return it->second;
}

void Shell::PublishJob(const JobState& job) {
  stale_jobs_.erase(job.record.id);
  board_->PublishJob(job.record,
                     job.progress.Progress(job.record, job.tokens_per_step));
}

std::shared_ptr<SessionSink> Shell::SinkOf(SessionId session) {
  MutexLock lock(&sinks_mutex_);
  auto it = sinks_.find(session);
  return it == sinks_.end() ? nullptr : it->second;
}

void Shell::Fail(const absl::Status& status, std::vector<Item> items) {
  LOG(ERROR) << "the store failed; nothing more is decided"
             << Field("error", status.message());
  const absl::Status refusal = absl::UnavailableError(absl::StrCat(
      "the coordinator's store failed and it starts anew; try again: ",
      status.message()));
  {
    MutexLock lock(&mutex_);
    refusal_ = refusal;
    for (Item& item : outbox_) items.push_back(std::move(item));
    outbox_.clear();
  }
  timer_changed_.Signal();
  for (Item& item : items) {
    if (auto* reply = std::get_if<Reply>(&item)) {
      (*reply)(refusal);
    } else if (auto* steps = std::get_if<StoreSteps>(&item)) {
      steps->done();
    }
  }
  CloseAll(refusal);
  if (options_.on_store_failure) options_.on_store_failure(status);
}

void Shell::CloseAll(const absl::Status& status) {
  std::map<SessionId, std::shared_ptr<SessionSink>> sinks;
  {
    MutexLock lock(&sinks_mutex_);
    sinks.swap(sinks_);
  }
  for (const auto& [session, sink] : sinks) sink->Close(status);
  board_->Close(status);
}

// ------------------------------------------------------------------ timer

Moment Shell::AwakeNow() {
  const Moment now = clock_.NowMoment();
  const absl::Duration late = now.steady - timer_deadline_;
  if (late > core_->options().lease / 3) {
    LOG(WARNING) << "the coordinator was not running for a while; leases begin "
                    "again"
                 << Field("for_at_least", absl::FormatDuration(absl::Trunc(
                                              late, absl::Milliseconds(1))));
    core_->NoteStall(now);
    timer_deadline_ = now.steady;
  }
  return now;
}

void Shell::RunTimer() {
  MutexLock lock(&mutex_);
  while (refusal_.ok()) {
    Effects effects;
    core_->Tick(AwakeNow(), effects);
    Queue(std::move(effects));
    // A millisecond more: not to wake just before the deadline, nor to spin.
    timer_deadline_ = core_->NextDeadline();
    const absl::Duration wait =
        std::max(timer_deadline_ - clock_.Now(), absl::ZeroDuration());
    timer_changed_.WaitFor(&mutex_, wait + absl::Milliseconds(1));
  }
}

}  // namespace lockstep
