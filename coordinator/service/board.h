// What the API shows: jobs, workers and steps as they were last published, and
// who watches them.
//
// Publishing is for one thread, which does it in order and only of what is
// durable; reading and watching is for all.  Watchers are called by the
// publishing thread, with no lock held.
#ifndef COORDINATOR_SERVICE_BOARD_H_
#define COORDINATOR_SERVICE_BOARD_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "coordinator/core/records.h"
#include "lockstep/v1/job.pb.h"
#include "lockstep/v1/monitor_service.pb.h"

namespace lockstep {

using JobSnapshot = std::shared_ptr<const v1::Job>;
using StepSnapshot = std::shared_ptr<const v1::StepMetrics>;

// Follows one job.  Calls come one at a time; OnEnd is the last.
class JobWatcher {
 public:
  virtual ~JobWatcher() = default;
  // `revision` is larger each time.
  virtual void OnJob(const JobSnapshot& job, int64_t revision) = 0;
  // OK when the job has ended, or is forgotten.
  virtual void OnEnd(const absl::Status& status) = 0;
};

// Follows one job's steps.  Likewise.
class StepWatcher {
 public:
  virtual ~StepWatcher() = default;
  virtual void OnSteps(const std::vector<StepSnapshot>& rows) = 0;
  virtual void OnEnd(const absl::Status& status) = 0;
};

// Thread-safe, as said above.
class Board {
 public:
  // Rows of commits up to `commit` are in the store, and were never published.
  explicit Board(int64_t commit) : commit_(commit) {}

  // ---- Publishing.

  void PublishJob(const JobRecord& record, const v1::JobProgress& progress);
  void EraseJob(const JobId& job);
  void PublishWorker(const WorkerView& view);
  void RetractWorker(const WorkerId& worker);
  // All rows that `commit` stored; larger than the last.
  void PublishSteps(
      const std::map<JobId, std::vector<StepSnapshot>>& rows_by_job,
      int64_t commit);
  // Ends all watching, present and future, with `status`.
  void Close(const absl::Status& status);

  // From any thread: when a worker last spoke.
  void NoteSeen(const WorkerId& worker, absl::Time time);

  // ---- Reading.

  // Errors:
  //   NotFound: no such job.
  absl::StatusOr<JobSnapshot> GetJob(const JobId& job) const;

  struct JobPage {
    std::vector<JobSnapshot> jobs;
    std::optional<int64_t> next;  // `before` of the next page.
  };
  // Newest first; only of submission numbers below `before` and, unless
  // `states` is empty, only in one of these.  No more than fit in `bytes_max`,
  // but one.
  JobPage ListJobs(std::optional<int64_t> before,
                   const std::set<v1::Job::State>& states, int count_max,
                   size_t bytes_max) const;

  struct WorkerPage {
    std::vector<v1::Worker> workers;
    std::optional<std::string> next;  // `after` of the next page.
  };
  // By name; only names behind `after`.
  WorkerPage ListWorkers(const std::string& after, int count_max) const;

  // The phase of a worker; unspecified if it is not known.
  v1::Worker::Phase PhaseOf(const std::string& worker_name) const;

  // ---- Watching.

  struct JobView {
    JobSnapshot job;
    int64_t revision = 0;
  };
  // The job as it is; the watcher hears of what comes after, unless the state
  // is final: then it hears nothing.
  //
  // Errors:
  //   NotFound: no such job.
  //   Unavailable and so on: Close() was called.
  absl::StatusOr<JobView> WatchJob(const JobId& job,
                                   std::shared_ptr<JobWatcher> watcher);
  void Unwatch(const JobId& job, const std::shared_ptr<JobWatcher>& watcher);

  struct StepView {
    // The watcher hears of all rows of later commits, and of no others.
    int64_t commit = 0;
    bool job_has_ended = false;  // Then the watcher hears nothing.
  };
  absl::StatusOr<StepView> WatchSteps(const JobId& job,
                                      std::shared_ptr<StepWatcher> watcher);
  void Unwatch(const JobId& job, const std::shared_ptr<StepWatcher>& watcher);

 private:
  struct Entry {
    JobSnapshot job;
    int64_t order = 0;
    int64_t revision = 0;
    // The record's spec, to see that it is still the parsed one.
    std::shared_ptr<const std::string> spec;
    std::set<std::shared_ptr<JobWatcher>> job_watchers;
    std::set<std::shared_ptr<StepWatcher>> step_watchers;
  };
  struct WorkerEntry {
    v1::Worker worker;
    absl::Time last_seen;
  };

  std::optional<int> RankOf(const WorkerView& view) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::map<JobId, Entry> jobs_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, JobId> job_by_order_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, WorkerEntry> workers_ ABSL_GUARDED_BY(mutex_);
  int64_t commit_ ABSL_GUARDED_BY(mutex_);
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lockstep

#endif  // COORDINATOR_SERVICE_BOARD_H_
