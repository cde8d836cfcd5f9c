#include "coordinator/store/store.h"

#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/mutex.h"
#include "common/status.h"
#include "coordinator/store/schema.h"
#include "coordinator/store/sqlite.h"
#include "coordinator/store/store_lock.h"

namespace lockstep {
namespace {

constexpr char kInsertJob[] = R"(
INSERT INTO jobs (
  number, id, request_id, spec_digest, spec, priority, min_workers, max_workers,
  micro_batches, failures_max, output_directory, state, reason, numeric_class,
  generation, members, failure_count, committed_step_count, best_step_count,
  max_steps, create_time, start_time, end_time, bfloat16, zero_stage,
  ledger)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16,
  ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26)
ON CONFLICT (number) DO UPDATE SET
  state = ?12, reason = ?13, numeric_class = ?14, generation = ?15,
  members = ?16, failure_count = ?17, committed_step_count = ?18,
  best_step_count = ?19, max_steps = ?20, start_time = ?22, end_time = ?23,
  zero_stage = ?25, ledger = ?26)";

constexpr char kSelectJobs[] = R"(
SELECT number, id, request_id, spec_digest, spec, priority, min_workers,
  max_workers, micro_batches, failures_max, output_directory, state, reason,
  numeric_class, generation, members, failure_count, committed_step_count,
  best_step_count, max_steps, create_time, start_time, end_time, progress,
  bfloat16, zero_stage, ledger
FROM jobs ORDER BY number)";

constexpr char kInsertRow[] = R"(
INSERT INTO step_rows (job, step, generation, rank, commit_number, metrics)
SELECT number, ?2, ?3, ?4, ?5, ?6 FROM jobs WHERE id = ?1
ON CONFLICT DO NOTHING)";

constexpr char kListRows[] = R"(
SELECT generation, step, rank, metrics FROM step_rows AS row
WHERE job = (SELECT number FROM jobs WHERE id = ?1)
  AND step BETWEEN ?2 AND ?3
  AND (step > ?4 OR (step = ?4 AND rank > ?5))
  AND commit_number <= ?6
  AND generation = (SELECT MAX(generation) FROM step_rows AS other
                    WHERE other.job = row.job AND other.step = row.step)
ORDER BY step, rank LIMIT ?7)";

// Newest first.
constexpr char kLastRows[] = R"(
SELECT generation, step, rank, metrics FROM step_rows
WHERE job = (SELECT number FROM jobs WHERE id = ?1) AND generation = ?2
  AND step > (SELECT MAX(step) FROM step_rows
              WHERE job = (SELECT number FROM jobs WHERE id = ?1)
                AND generation = ?2) - ?3
ORDER BY step DESC, rank DESC LIMIT ?4)";

void BindTime(SqliteStatement& statement, int parameter,
              const std::optional<absl::Time>& time) {
  if (time.has_value()) {
    statement.Bind(parameter, absl::ToUnixNanos(*time));
  } else {
    statement.BindNull(parameter);
  }
}

std::optional<absl::Time> TimeAt(const SqliteStatement& row, int column) {
  if (row.IsNull(column)) return std::nullopt;
  return absl::FromUnixNanos(row.Int(column));
}

std::string LedgerText(const std::vector<LedgerRow>& ledger) {
  std::string text;
  for (const LedgerRow& row : ledger) {
    absl::StrAppend(&text, row.generation, " ", row.plan_version, " ",
                    row.first_step, " ", row.end_step);
    for (size_t i = 0; i < row.workers.size(); ++i) {
      absl::StrAppend(&text, " ", row.workers[i].value, ":",
                      row.micro_batches[i].first, "+",
                      row.micro_batches[i].count);
    }
    text += '\n';
  }
  return text;
}

// Errors: DataLoss: it is none.
absl::StatusOr<std::vector<LedgerRow>> ParseLedger(const std::string& text) {
  std::vector<LedgerRow> ledger;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    LedgerRow& row = ledger.emplace_back();
    bool sound = words.size() >= 4 &&
                 absl::SimpleAtoi(words[0], &row.generation) &&
                 absl::SimpleAtoi(words[1], &row.plan_version) &&
                 absl::SimpleAtoi(words[2], &row.first_step) &&
                 absl::SimpleAtoi(words[3], &row.end_step);
    for (size_t i = 4; sound && i < words.size(); ++i) {
      const std::vector<std::string> parts =
          absl::StrSplit(words[i], absl::ByAnyChar(":+"));
      MicroBatchRange& range = row.micro_batches.emplace_back();
      sound = parts.size() == 3 && absl::SimpleAtoi(parts[1], &range.first) &&
              absl::SimpleAtoi(parts[2], &range.count);
      if (sound) row.workers.push_back({parts[0]});
    }
    if (!sound) {
      return absl::DataLossError(
          absl::StrCat("ledger: expected a row, got \"", line, "\""));
    }
  }
  return ledger;
}

// Text that is bound must outlive the step: `members` and `ledger` are the
// caller's.
void BindJob(SqliteStatement& s, const JobRecord& record,
             const std::string& members, const std::string& ledger) {
  s.Bind(1, record.order);
  s.BindText(2, record.id.value);
  s.BindText(3, record.request_id);
  s.BindText(4, record.spec_digest);
  s.BindBlob(5, *record.spec);
  s.Bind(6, record.needs.priority);
  s.Bind(7, record.needs.min_workers);
  s.Bind(8, record.needs.max_workers);
  s.Bind(9, record.needs.micro_batches);
  s.Bind(10, record.needs.failures_max);
  s.BindText(11, record.needs.output_directory);
  s.Bind(12, static_cast<int>(record.state));
  s.BindText(13, record.reason);
  s.BindText(14, record.numeric_class);
  s.Bind(15, record.generation);
  s.BindText(16, members);
  s.Bind(17, record.failure_count);
  s.Bind(18, record.committed_step_count);
  s.Bind(19, record.best_step_count);
  s.Bind(20, record.max_steps);
  s.Bind(21, absl::ToUnixNanos(record.create_time));
  BindTime(s, 22, record.start_time);
  BindTime(s, 23, record.end_time);
  s.Bind(24, record.needs.bfloat16 ? 1 : 0);
  if (record.zero_stage.has_value()) {
    s.Bind(25, *record.zero_stage);
  } else {
    s.BindNull(25);
  }
  s.BindText(26, ledger);
}

absl::StatusOr<StoredJob> JobAt(const SqliteStatement& s) {
  StoredJob job;
  JobRecord& record = job.record;
  record.order = s.Int(0);
  record.id = {s.Bytes(1)};
  record.request_id = s.Bytes(2);
  record.spec_digest = s.Bytes(3);
  record.spec = std::make_shared<const std::string>(s.Bytes(4));
  record.needs.priority = static_cast<int>(s.Int(5));
  record.needs.min_workers = static_cast<int>(s.Int(6));
  record.needs.max_workers = static_cast<int>(s.Int(7));
  record.needs.micro_batches = static_cast<int>(s.Int(8));
  record.needs.failures_max = static_cast<int>(s.Int(9));
  record.needs.output_directory = s.Bytes(10);
  const int64_t state = s.Int(11);
  if (state < static_cast<int>(JobState::kQueued) ||
      state > static_cast<int>(JobState::kFailed)) {
    return absl::DataLossError(absl::StrCat("jobs, number ", record.order,
                                            ": state: expected 1 to 7, got ",
                                            state));
  }
  record.state = static_cast<JobState>(state);
  record.reason = s.Bytes(12);
  record.numeric_class = s.Bytes(13);
  record.generation = s.Int(14);
  const std::string members = s.Bytes(15);
  for (absl::string_view member :
       absl::StrSplit(members, ' ', absl::SkipEmpty())) {
    record.members.push_back({std::string(member)});
  }
  record.failure_count = static_cast<int>(s.Int(16));
  record.committed_step_count = s.Int(17);
  record.best_step_count = s.Int(18);
  record.max_steps = s.Int(19);
  record.create_time = absl::FromUnixNanos(s.Int(20));
  record.start_time = TimeAt(s, 21);
  record.end_time = TimeAt(s, 22);
  job.progress = s.Bytes(23);
  record.needs.bfloat16 = s.Int(24) != 0;
  if (!s.IsNull(25)) record.zero_stage = static_cast<int>(s.Int(25));
  absl::StatusOr<std::vector<LedgerRow>> ledger = ParseLedger(s.Bytes(26));
  if (!ledger.ok()) {
    return Annotate(ledger.status(),
                    absl::StrCat("jobs, number ", record.order));
  }
  record.ledger = *std::move(ledger);
  return job;
}

absl::StatusOr<std::vector<StepRow>> ReadRows(SqliteStatement& statement,
                                              const JobId& job) {
  std::vector<StepRow> rows;
  while (true) {
    ASSIGN_OR_RETURN(const bool found, statement.Step());
    if (!found) break;
    rows.push_back({.key = {job, statement.Int(0)},
                    .step = statement.Int(1),
                    .rank = static_cast<int>(statement.Int(2)),
                    .metrics = statement.Bytes(3)});
  }
  statement.Reset();
  return rows;
}

class SqliteStore : public Store {
 public:
  static absl::StatusOr<std::unique_ptr<Store>> Create(
      const StoreOptions& options, StoreLock lock, const std::string& path);

  absl::StatusOr<StoreContent> Load() override;
  absl::StatusOr<std::vector<bool>> Apply(
      const std::vector<StoreChange>& changes, int64_t commit) override;
  absl::StatusOr<std::vector<StepRow>> ListSteps(
      const StepQuery& query) override;
  absl::StatusOr<std::vector<StepRow>> LastSteps(const GenerationKey& key,
                                                 int step_count,
                                                 int row_count_max) override;

 private:
  SqliteStore(int64_t step_row_max, StoreLock lock, SqliteDatabase writer,
              SqliteDatabase reader)
      : step_row_max_(step_row_max),
        lock_(std::move(lock)),
        writer_(std::move(writer)),
        reader_(std::move(reader)) {}

  absl::Status PrepareAll();
  absl::StatusOr<std::vector<bool>> ApplyInTransaction(
      const std::vector<StoreChange>& changes, int64_t commit)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer_mutex_);
  absl::StatusOr<bool> Erase(const JobId& job)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer_mutex_);
  absl::Status CountRows(const JobId& job, int64_t inserted_count)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer_mutex_);

  const int64_t step_row_max_;
  const StoreLock lock_;

  Mutex writer_mutex_;
  SqliteDatabase writer_ ABSL_GUARDED_BY(writer_mutex_);
  SqliteStatement insert_job_ ABSL_GUARDED_BY(writer_mutex_);
  SqliteStatement insert_row_ ABSL_GUARDED_BY(writer_mutex_);
  SqliteStatement update_progress_ ABSL_GUARDED_BY(writer_mutex_);
  SqliteStatement add_row_count_ ABSL_GUARDED_BY(writer_mutex_);
  SqliteStatement row_count_ ABSL_GUARDED_BY(writer_mutex_);
  SqliteStatement oldest_rows_ ABSL_GUARDED_BY(writer_mutex_);
  SqliteStatement delete_oldest_ ABSL_GUARDED_BY(writer_mutex_);
  SqliteStatement delete_rows_ ABSL_GUARDED_BY(writer_mutex_);
  SqliteStatement delete_job_ ABSL_GUARDED_BY(writer_mutex_);

  // A connection of its own: readers do not wait for commits.
  Mutex reader_mutex_;
  SqliteDatabase reader_ ABSL_GUARDED_BY(reader_mutex_);
  SqliteStatement list_rows_ ABSL_GUARDED_BY(reader_mutex_);
  SqliteStatement last_rows_ ABSL_GUARDED_BY(reader_mutex_);
};

absl::StatusOr<std::unique_ptr<Store>> SqliteStore::Create(
    const StoreOptions& options, StoreLock lock, const std::string& path) {
  ASSIGN_OR_RETURN(SqliteDatabase writer,
                   SqliteDatabase::Open(path, SQLITE_OPEN_READWRITE));
  // Of the tables without which nothing goes on; the rest shows when read.
  for (const char* table : {"coordinator", "jobs"}) {
    ASSIGN_OR_RETURN(
        const std::string verdict,
        writer.QueryText(absl::StrCat("PRAGMA quick_check('", table, "')")));
    if (verdict != "ok") {
      return absl::DataLossError(absl::StrCat(
          path, ": the database is damaged: ", verdict,
          ". Restore a copy, or move the folder away to start with an empty "
          "store (jobs are then forgotten)"));
    }
  }
  RETURN_IF_ERROR(MigrateStore(writer));
  ASSIGN_OR_RETURN(const std::string mode,
                   writer.QueryText("PRAGMA journal_mode = WAL"));
  if (mode != "wal") {
    return absl::FailedPreconditionError(absl::StrCat(
        path,
        ": this file system cannot hold a write-ahead log (SQLite stays "
        "in mode ",
        mode, "); choose a store on a local disk"));
  }
  // Every commit reaches the disk before it counts.
  RETURN_IF_ERROR(writer.Execute("PRAGMA synchronous = FULL"));
  RETURN_IF_ERROR(writer.Execute("PRAGMA journal_size_limit = 67108864"));
  ASSIGN_OR_RETURN(SqliteDatabase reader,
                   SqliteDatabase::Open(path, SQLITE_OPEN_READWRITE));
  RETURN_IF_ERROR(reader.Execute("PRAGMA query_only = 1"));
  std::unique_ptr<SqliteStore> store(
      new SqliteStore(options.step_row_max, std::move(lock), std::move(writer),
                      std::move(reader)));
  RETURN_IF_ERROR(store->PrepareAll());
  return store;
}

absl::Status SqliteStore::PrepareAll() {
  {
    MutexLock lock(&writer_mutex_);
    ASSIGN_OR_RETURN(insert_job_, writer_.Prepare(kInsertJob));
    ASSIGN_OR_RETURN(insert_row_, writer_.Prepare(kInsertRow));
    ASSIGN_OR_RETURN(
        update_progress_,
        writer_.Prepare("UPDATE jobs SET progress = ?2 WHERE id = ?1"));
    ASSIGN_OR_RETURN(
        add_row_count_,
        writer_.Prepare("UPDATE jobs SET step_row_count = step_row_count + ?2 "
                        "WHERE id = ?1"));
    ASSIGN_OR_RETURN(row_count_,
                     writer_.Prepare("SELECT step_row_count, number FROM jobs "
                                     "WHERE id = ?1"));
    ASSIGN_OR_RETURN(
        oldest_rows_,
        writer_.Prepare("SELECT generation, step FROM step_rows WHERE job = ?1 "
                        "ORDER BY generation, step LIMIT 1 OFFSET ?2"));
    ASSIGN_OR_RETURN(delete_oldest_,
                     writer_.Prepare("DELETE FROM step_rows WHERE job = ?1 AND "
                                     "(generation, step) <= (?2, ?3)"));
    ASSIGN_OR_RETURN(
        delete_rows_,
        writer_.Prepare("DELETE FROM step_rows WHERE job = "
                        "(SELECT number FROM jobs WHERE id = ?1)"));
    ASSIGN_OR_RETURN(delete_job_,
                     writer_.Prepare("DELETE FROM jobs WHERE id = ?1"));
  }
  MutexLock lock(&reader_mutex_);
  ASSIGN_OR_RETURN(list_rows_, reader_.Prepare(kListRows));
  ASSIGN_OR_RETURN(last_rows_, reader_.Prepare(kLastRows));
  return absl::OkStatus();
}

absl::StatusOr<StoreContent> SqliteStore::Load() {
  MutexLock lock(&writer_mutex_);
  StoreContent content;
  RETURN_IF_ERROR(
      writer_.Execute("UPDATE coordinator SET incarnation = incarnation + 1"));
  ASSIGN_OR_RETURN(content.incarnation.value,
                   writer_.QueryInt("SELECT incarnation FROM coordinator"));
  ASSIGN_OR_RETURN(SqliteStatement select, writer_.Prepare(kSelectJobs));
  while (true) {
    ASSIGN_OR_RETURN(const bool found, select.Step());
    if (!found) break;
    ASSIGN_OR_RETURN(StoredJob job, JobAt(select));
    content.jobs.push_back(std::move(job));
  }
  return content;
}

absl::StatusOr<std::vector<bool>> SqliteStore::Apply(
    const std::vector<StoreChange>& changes, int64_t commit) {
  MutexLock lock(&writer_mutex_);
  RETURN_IF_ERROR(writer_.Execute("BEGIN IMMEDIATE"));
  absl::StatusOr<std::vector<bool>> result =
      ApplyInTransaction(changes, commit);
  if (result.ok()) {
    if (absl::Status status = writer_.Execute("COMMIT"); !status.ok()) {
      result = status;
    }
  }
  // Of many errors SQLite has rolled back by itself; then this one says so.
  if (!result.ok()) writer_.Execute("ROLLBACK").IgnoreError();
  return result;
}

absl::StatusOr<std::vector<bool>> SqliteStore::ApplyInTransaction(
    const std::vector<StoreChange>& changes, int64_t commit) {
  std::vector<bool> changed;
  changed.reserve(changes.size());
  std::map<JobId, int64_t> inserted_counts;
  for (const StoreChange& change : changes) {
    if (const auto* persist = std::get_if<PersistJob>(&change)) {
      const std::string members =
          absl::StrJoin(persist->record.members, " ",
                        [](std::string* out, const WorkerId& worker) {
                          out->append(worker.value);
                        });
      const std::string ledger = LedgerText(persist->record.ledger);
      BindJob(insert_job_, persist->record, members, ledger);
      RETURN_IF_ERROR(insert_job_.Run());
      changed.push_back(true);
    } else if (const auto* erase = std::get_if<EraseJob>(&change)) {
      ASSIGN_OR_RETURN(const bool erased, Erase(erase->job));
      changed.push_back(erased);
    } else if (const auto* row = std::get_if<StepRow>(&change)) {
      insert_row_.BindText(1, row->key.job.value);
      insert_row_.Bind(2, row->step);
      insert_row_.Bind(3, row->key.generation);
      insert_row_.Bind(4, row->rank);
      insert_row_.Bind(5, commit);
      insert_row_.BindBlob(6, row->metrics);
      RETURN_IF_ERROR(insert_row_.Run());
      changed.push_back(writer_.changes() > 0);
      if (changed.back()) ++inserted_counts[row->key.job];
    } else {
      const auto& progress = std::get<StoreProgress>(change);
      update_progress_.BindText(1, progress.job.value);
      update_progress_.BindBlob(2, progress.progress);
      RETURN_IF_ERROR(update_progress_.Run());
      changed.push_back(writer_.changes() > 0);
    }
  }
  for (const auto& [job, count] : inserted_counts) {
    RETURN_IF_ERROR(CountRows(job, count));
  }
  return changed;
}

absl::StatusOr<bool> SqliteStore::Erase(const JobId& job) {
  delete_rows_.BindText(1, job.value);
  RETURN_IF_ERROR(delete_rows_.Run());
  delete_job_.BindText(1, job.value);
  RETURN_IF_ERROR(delete_job_.Run());
  return writer_.changes() > 0;
}

absl::Status SqliteStore::CountRows(const JobId& job, int64_t inserted_count) {
  add_row_count_.BindText(1, job.value);
  add_row_count_.Bind(2, inserted_count);
  RETURN_IF_ERROR(add_row_count_.Run());
  row_count_.BindText(1, job.value);
  ASSIGN_OR_RETURN(const bool found, row_count_.Step());
  const int64_t count = found ? row_count_.Int(0) : 0;
  const int64_t number = found ? row_count_.Int(1) : 0;
  row_count_.Reset();
  if (count <= step_row_max_) return absl::OkStatus();
  // Some more than must go, so that not every commit has to clear up.
  const int64_t excess = count - step_row_max_ + step_row_max_ / 16;
  oldest_rows_.Bind(1, number);
  oldest_rows_.Bind(2, excess - 1);
  ASSIGN_OR_RETURN(const bool any, oldest_rows_.Step());
  if (any) {
    delete_oldest_.Bind(1, number);
    delete_oldest_.Bind(2, oldest_rows_.Int(0));
    delete_oldest_.Bind(3, oldest_rows_.Int(1));
  }
  oldest_rows_.Reset();
  if (!any) return absl::OkStatus();
  RETURN_IF_ERROR(delete_oldest_.Run());
  add_row_count_.Bind(2, -writer_.changes());
  return add_row_count_.Run();
}

absl::StatusOr<std::vector<StepRow>> SqliteStore::ListSteps(
    const StepQuery& query) {
  MutexLock lock(&reader_mutex_);
  const StepPlace after = query.after.value_or(StepPlace{-1, -1});
  list_rows_.BindText(1, query.job.value);
  // A scan begins at the place: rows before it are not even looked at.
  list_rows_.Bind(2, std::max(query.first_step, after.step));
  list_rows_.Bind(3, query.last_step);
  list_rows_.Bind(4, after.step);
  list_rows_.Bind(5, after.rank);
  list_rows_.Bind(6, query.last_commit);
  list_rows_.Bind(7, query.row_count_max);
  return ReadRows(list_rows_, query.job);
}

absl::StatusOr<std::vector<StepRow>> SqliteStore::LastSteps(
    const GenerationKey& key, int step_count, int row_count_max) {
  MutexLock lock(&reader_mutex_);
  last_rows_.BindText(1, key.job.value);
  last_rows_.Bind(2, key.generation);
  last_rows_.Bind(3, step_count);
  last_rows_.Bind(4, int64_t{row_count_max} + 1);
  ASSIGN_OR_RETURN(std::vector<StepRow> rows, ReadRows(last_rows_, key.job));
  if (static_cast<int64_t>(rows.size()) > row_count_max) {
    // The oldest step is not whole.
    const int64_t cut = rows.back().step;
    std::erase_if(rows, [&](const StepRow& row) { return row.step == cut; });
  }
  return std::vector<StepRow>(std::make_move_iterator(rows.rbegin()),
                              std::make_move_iterator(rows.rend()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> OpenStore(const StoreOptions& options) {
  if (options.folder.empty()) {
    return absl::InvalidArgumentError("store: no folder is given");
  }
  if (options.step_row_max < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "step_row_max: expected at least 1, got ", options.step_row_max));
  }
  std::error_code error;
  // "store" has its folder elsewhere, and "store/" is not in itself.
  std::filesystem::create_directories(
      std::filesystem::absolute(
          std::string(absl::StripSuffix(options.folder, "/")))
          .parent_path(),
      error);
  if (error) {
    return absl::ErrnoToStatus(
        error.value(),
        absl::StrCat(options.folder, ": create the folders above the store's"));
  }
  if (mkdir(options.folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::ErrnoToStatus(
        errno, absl::StrCat(options.folder, ": create the store's folder"));
  }
  ASSIGN_OR_RETURN(StoreLock lock, StoreLock::Acquire(options.folder));
  const std::string path = absl::StrCat(options.folder, "/coordinator.db");
  absl::Status status = CheckStoreHeader(path);
  if (absl::IsNotFound(status)) {
    // SQLite would play the log of a lost database into a new one.
    const std::string log = path + "-wal";
    if (struct stat info; stat(log.c_str(), &info) == 0) {
      return absl::DataLossError(absl::StrCat(
          path, ": missing, but its log ", log,
          " is there; restore both, or move the folder away to start with an "
          "empty store (jobs are then forgotten)"));
    }
    status = CreateStoreFile(path);
  }
  RETURN_IF_ERROR(status);
  return SqliteStore::Create(options, std::move(lock), path);
}

}  // namespace lockstep
