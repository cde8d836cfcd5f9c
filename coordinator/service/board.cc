#include "coordinator/service/board.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/log.h"
#include "common/time_proto.h"
#include "coordinator/service/names.h"
#include "coordinator/service/views.h"

namespace lockstep {
namespace {

bool HasEnded(const v1::Job& job) {
  return job.state() == v1::Job::COMPLETED ||
         job.state() == v1::Job::CANCELLED || job.state() == v1::Job::FAILED;
}

// One line when the state, or what a job waits for, changed.
void LogChange(const v1::Job* before, const v1::Job& now) {
  if (before != nullptr && before->state() == now.state() &&
      before->state_reason() == now.state_reason() &&
      before->generation() == now.generation()) {
    return;
  }
  std::string text;
  if (!now.state_reason().empty()) {
    text = Field("reason", now.state_reason());
  }
  LOG(INFO) << "job changed" << Field("job", now.name())
            << Field("state", v1::Job::State_Name(now.state()))
            << Field("generation", now.generation()) << text;
}

void LogChange(const v1::Worker* before, const v1::Worker& now) {
  if (before != nullptr && before->state() == now.state() &&
      before->job() == now.job() && before->generation() == now.generation() &&
      before->incarnation() == now.incarnation() &&
      before->trainer_death_count() == now.trainer_death_count()) {
    return;
  }
  std::string text;
  if (!now.job().empty()) {
    text = Field("job", now.job()) + Field("generation", now.generation()) +
           Field("rank", now.rank());
  }
  if (!now.state_reason().empty()) {
    text += Field("reason", now.state_reason());
  }
  LOG(INFO) << "worker changed" << Field("worker", now.name())
            << Field("state", v1::Worker::State_Name(now.state()))
            << Field("peer", now.peer_address()) << text;
}

}  // namespace

void Board::PublishJob(const JobRecord& record,
                       const v1::JobProgress& progress) {
  JobSnapshot before;
  bool parsed = false;
  {
    MutexLock lock(&mutex_);
    auto it = jobs_.find(record.id);
    if (it != jobs_.end()) {
      before = it->second.job;
      parsed = it->second.spec == record.spec;
    }
  }
  auto job = std::make_shared<v1::Job>();
  if (parsed) {
    *job->mutable_spec() = before->spec();
  } else {
    // Checked when it was submitted, and again when it was loaded.
    LS_CHECK(job->mutable_spec()->ParseFromString(*record.spec));
  }
  FillJob(record, *job);
  if (progress.step_count() > 0) *job->mutable_progress() = progress;
  // Of the last steps of a job that was ended there may be reports alone.
  if (job->ledger_size() > 0) {
    v1::LedgerRow& last = *job->mutable_ledger(job->ledger_size() - 1);
    if (last.generation() == record.generation &&
        last.end_step() < progress.step_count()) {
      last.set_end_step(progress.step_count());
    }
  }
  LogChange(before.get(), *job);

  const bool ended = HasEnded(*job);
  int64_t revision = 0;
  std::set<std::shared_ptr<JobWatcher>> job_watchers;
  std::set<std::shared_ptr<StepWatcher>> step_watchers;
  {
    MutexLock lock(&mutex_);
    Entry& entry = jobs_[record.id];
    entry.job = job;
    entry.order = record.order;
    entry.spec = record.spec;
    revision = ++entry.revision;
    job_by_order_[record.order] = record.id;
    if (ended) {
      job_watchers.swap(entry.job_watchers);
      step_watchers.swap(entry.step_watchers);
    } else {
      job_watchers = entry.job_watchers;
    }
  }
  for (const auto& watcher : job_watchers) {
    watcher->OnJob(job, revision);
    if (ended) watcher->OnEnd(absl::OkStatus());
  }
  for (const auto& watcher : step_watchers) watcher->OnEnd(absl::OkStatus());
}

// A job that is erased has ended: nobody watches it any more.
void Board::EraseJob(const JobId& job) {
  LOG(INFO) << "job forgotten" << Field("job", JobName(job));
  MutexLock lock(&mutex_);
  auto it = jobs_.find(job);
  if (it == jobs_.end()) return;
  job_by_order_.erase(it->second.order);
  jobs_.erase(it);
}

void Board::PublishWorker(const WorkerView& view) {
  v1::Worker before;
  v1::Worker worker;
  bool known = false;
  {
    MutexLock lock(&mutex_);
    worker = WorkerToProto(view, RankOf(view));
    auto [it, added] = workers_.try_emplace(worker.name());
    known = !added;
    before = std::exchange(it->second.worker, worker);
    it->second.last_seen =
        added ? view.last_seen_time
              : std::max(it->second.last_seen, view.last_seen_time);
  }
  LogChange(known ? &before : nullptr, worker);
}

std::optional<int> Board::RankOf(const WorkerView& view) const {
  if (!view.assigned.has_value()) return std::nullopt;
  auto job = jobs_.find(view.assigned->job);
  if (job == jobs_.end() ||
      job->second.job->generation() != view.assigned->generation) {
    return std::nullopt;
  }
  const auto& names = job->second.job->workers();
  const auto at = std::find(names.begin(), names.end(), WorkerName(view.id));
  if (at == names.end()) return std::nullopt;
  return static_cast<int>(at - names.begin());
}

void Board::RetractWorker(const WorkerId& worker) {
  LOG(INFO) << "worker forgotten" << Field("worker", WorkerName(worker));
  MutexLock lock(&mutex_);
  workers_.erase(WorkerName(worker));
}

void Board::PublishSteps(
    const std::map<JobId, std::vector<StepSnapshot>>& rows_by_job,
    int64_t commit) {
  // Who begins to watch after this finds the rows in the store, who did before
  // gets them here.
  std::map<JobId, std::set<std::shared_ptr<StepWatcher>>> watchers_by_job;
  {
    MutexLock lock(&mutex_);
    LS_CHECK(commit > commit_);
    commit_ = commit;
    for (const auto& [id, rows] : rows_by_job) {
      auto it = jobs_.find(id);
      if (it != jobs_.end()) watchers_by_job[id] = it->second.step_watchers;
    }
  }
  for (const auto& [id, watchers] : watchers_by_job) {
    for (const auto& watcher : watchers) watcher->OnSteps(rows_by_job.at(id));
  }
}

void Board::Close(const absl::Status& status) {
  LS_CHECK(!status.ok());
  std::vector<std::shared_ptr<JobWatcher>> job_watchers;
  std::vector<std::shared_ptr<StepWatcher>> step_watchers;
  {
    MutexLock lock(&mutex_);
    closed_ = status;
    for (auto& [id, entry] : jobs_) {
      job_watchers.insert(job_watchers.end(), entry.job_watchers.begin(),
                          entry.job_watchers.end());
      step_watchers.insert(step_watchers.end(), entry.step_watchers.begin(),
                           entry.step_watchers.end());
      entry.job_watchers.clear();
      entry.step_watchers.clear();
    }
  }
  for (const auto& watcher : job_watchers) watcher->OnEnd(status);
  for (const auto& watcher : step_watchers) watcher->OnEnd(status);
}

void Board::NoteSeen(const WorkerId& worker, absl::Time time) {
  MutexLock lock(&mutex_);
  auto it = workers_.find(WorkerName(worker));
  if (it != workers_.end()) {
    it->second.last_seen = std::max(it->second.last_seen, time);
  }
}

absl::StatusOr<JobSnapshot> Board::GetJob(const JobId& job) const {
  MutexLock lock(&mutex_);
  auto it = jobs_.find(job);
  if (it == jobs_.end()) return NoSuchJob(job);
  return it->second.job;
}

Board::JobPage Board::ListJobs(std::optional<int64_t> before,
                               const std::set<v1::Job::State>& states,
                               int count_max, size_t bytes_max) const {
  MutexLock lock(&mutex_);
  JobPage page;
  auto it = before.has_value() ? job_by_order_.lower_bound(*before)
                               : job_by_order_.end();
  std::optional<int64_t> last;
  size_t bytes = 0;
  while (it != job_by_order_.begin()) {
    --it;
    const JobSnapshot& job = jobs_.at(it->second).job;
    if (!states.empty() && states.count(job->state()) == 0) continue;
    bytes += job->ByteSizeLong();
    if (static_cast<int>(page.jobs.size()) == count_max ||
        (bytes > bytes_max && !page.jobs.empty())) {
      page.next = last;
      break;
    }
    page.jobs.push_back(job);
    last = it->first;
  }
  return page;
}

Board::WorkerPage Board::ListWorkers(const std::string& after,
                                     int count_max) const {
  MutexLock lock(&mutex_);
  WorkerPage page;
  for (auto it = workers_.upper_bound(after); it != workers_.end(); ++it) {
    if (static_cast<int>(page.workers.size()) == count_max) {
      page.next = page.workers.back().name();
      break;
    }
    page.workers.push_back(it->second.worker);
    *page.workers.back().mutable_last_seen_time() =
        TimeToProto(it->second.last_seen);
  }
  return page;
}

v1::Worker::Phase Board::PhaseOf(const std::string& worker_name) const {
  MutexLock lock(&mutex_);
  auto it = workers_.find(worker_name);
  return it == workers_.end() ? v1::Worker::PHASE_UNSPECIFIED
                              : it->second.worker.phase();
}

absl::StatusOr<Board::JobView> Board::WatchJob(
    const JobId& job, std::shared_ptr<JobWatcher> watcher) {
  MutexLock lock(&mutex_);
  if (!closed_.ok()) return closed_;
  auto it = jobs_.find(job);
  if (it == jobs_.end()) return NoSuchJob(job);
  if (!HasEnded(*it->second.job)) {
    it->second.job_watchers.insert(std::move(watcher));
  }
  return JobView{it->second.job, it->second.revision};
}

void Board::Unwatch(const JobId& job,
                    const std::shared_ptr<JobWatcher>& watcher) {
  MutexLock lock(&mutex_);
  auto it = jobs_.find(job);
  if (it != jobs_.end()) it->second.job_watchers.erase(watcher);
}

absl::StatusOr<Board::StepView> Board::WatchSteps(
    const JobId& job, std::shared_ptr<StepWatcher> watcher) {
  MutexLock lock(&mutex_);
  if (!closed_.ok()) return closed_;
  auto it = jobs_.find(job);
  if (it == jobs_.end()) return NoSuchJob(job);
  const bool ended = HasEnded(*it->second.job);
  if (!ended) it->second.step_watchers.insert(std::move(watcher));
  return StepView{commit_, ended};
}

void Board::Unwatch(const JobId& job,
                    const std::shared_ptr<StepWatcher>& watcher) {
  MutexLock lock(&mutex_);
  auto it = jobs_.find(job);
  if (it != jobs_.end()) it->second.step_watchers.erase(watcher);
}

}  // namespace lockstep
