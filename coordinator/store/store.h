// What the coordinator keeps over a crash, a kill and a power cut: its
// incarnation, the jobs, and what ranks reported of steps.
//
// A folder with a SQLite database (coordinator.db and its -wal, -shm) and a
// lock file.  A change is durable when Apply() returns.
//
// Step rows: a rank reports a step once in a generation; after a failure a step
// may be taken again in a later one.  Reading shows, of each step, the rows of
// the latest generation that has any.  A job keeps at most `step_row_max` rows;
// beyond it the oldest go, by generation, then step, whole steps at a time.
#ifndef COORDINATOR_STORE_STORE_H_
#define COORDINATOR_STORE_STORE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ids.h"
#include "coordinator/core/effects.h"
#include "coordinator/core/records.h"

namespace lockstep {

// What one rank reported of one step.
struct StepRow {
  GenerationKey key;
  int64_t step = 0;
  int rank = 0;
  std::string metrics;  // Serialized StepMetrics.
};

// How far a job has come, as its steps tell.
struct StoreProgress {
  JobId job;
  std::string progress;  // Serialized; means nothing to the store.
};

using StoreChange = std::variant<PersistJob, EraseJob, StepRow, StoreProgress>;

struct StoredJob {
  JobRecord record;
  std::string progress;  // Last StoreProgress; empty if there was none.
};

struct StoreContent {
  // This start's: larger than any before.
  CoordinatorIncarnation incarnation;
  std::vector<StoredJob> jobs;
};

// A place among a job's rows: the row of `rank` in `step`.
struct StepPlace {
  int64_t step = 0;
  int rank = 0;
};

struct StepQuery {
  JobId job;
  int64_t first_step = 0;
  int64_t last_step = INT64_MAX;
  std::optional<StepPlace> after;   // Only rows behind this place.
  int64_t last_commit = INT64_MAX;  // Only rows of commits up to this one.
  int row_count_max = 1000;
};

class Store {
 public:
  virtual ~Store() = default;

  // Raises the incarnation, durably, and reads all jobs.  Once, first.
  virtual absl::StatusOr<StoreContent> Load() = 0;

  // Makes all changes, in order, or none, and makes them durable.  `commit`
  // numbers the call: larger each time, also over restarts.  Rows and progress
  // of a job that is not there are left out; so is a row whose rank has already
  // reported its step in that generation.
  //
  // Returns for each change whether it changed anything.
  //
  // Errors, after which what is on disk is as before the call:
  //   ResourceExhausted: the disk is full.
  //   DataLoss: the database is damaged.
  //   Unavailable: the disk failed.
  virtual absl::StatusOr<std::vector<bool>> Apply(
      const std::vector<StoreChange>& changes, int64_t commit) = 0;

  // Rows by step, then rank.  Thread-safe against Apply().  Errors: as Apply().
  virtual absl::StatusOr<std::vector<StepRow>> ListSteps(
      const StepQuery& query) = 0;

  // All rows of the last `step_count` steps of a generation, by step, then
  // rank; fewer steps where more than `row_count_max` rows would come.
  virtual absl::StatusOr<std::vector<StepRow>> LastSteps(
      const GenerationKey& key, int step_count, int row_count_max) = 0;
};

struct StoreOptions {
  std::string folder;  // Created if absent, for its owner alone.
  // Of a job; at least 1.  A row takes about 250 bytes.
  int64_t step_row_max = 1'000'000;
};

// Opens or creates a store.  Nothing of what is there is touched on an error:
//   InvalidArgument: an option is out of range.
//   FailedPrecondition: another process has the store open; the folder holds
//     another program's database, or one of a newer version.
//   DataLoss: the database is damaged.
//   PermissionDenied, NotFound and so on: the folder cannot be used.
absl::StatusOr<std::unique_ptr<Store>> OpenStore(const StoreOptions& options);

}  // namespace lockstep

#endif  // COORDINATOR_STORE_STORE_H_
