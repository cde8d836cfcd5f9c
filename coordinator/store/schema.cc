#include "coordinator/store/schema.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace lockstep {
namespace {

// Script i brings version i to i + 1.  Those of released versions never change.
constexpr const char* kMigrations[] = {
    // Times are nanoseconds since 1970.
    R"(
CREATE TABLE coordinator (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  incarnation INTEGER NOT NULL
);
INSERT INTO coordinator VALUES (1, 0);

CREATE TABLE jobs (
  number INTEGER PRIMARY KEY,  -- Of submission; never reused.
  id TEXT NOT NULL UNIQUE,
  request_id TEXT NOT NULL,
  spec_digest TEXT NOT NULL,
  spec BLOB NOT NULL,          -- Serialized lockstep.v1.JobSpec.
  priority INTEGER NOT NULL,
  min_workers INTEGER NOT NULL,
  max_workers INTEGER NOT NULL,
  micro_batches INTEGER NOT NULL,
  failures_max INTEGER NOT NULL,
  output_directory TEXT NOT NULL,
  state INTEGER NOT NULL,      -- As lockstep.v1.Job.State.
  reason TEXT NOT NULL,
  numeric_class TEXT NOT NULL,
  generation INTEGER NOT NULL,
  members TEXT NOT NULL,       -- By rank, a blank between.
  failure_count INTEGER NOT NULL,
  committed_step_count INTEGER NOT NULL,
  best_step_count INTEGER NOT NULL,
  max_steps INTEGER NOT NULL,
  create_time INTEGER NOT NULL,
  start_time INTEGER,
  end_time INTEGER,
  progress BLOB NOT NULL DEFAULT x'',
  step_row_count INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE step_rows (
  job INTEGER NOT NULL,        -- jobs.number.
  step INTEGER NOT NULL,
  generation INTEGER NOT NULL,
  rank INTEGER NOT NULL,
  commit_number INTEGER NOT NULL,
  metrics BLOB NOT NULL,       -- Serialized lockstep.v1.StepMetrics.
  PRIMARY KEY (job, step, generation, rank)
) WITHOUT ROWID;
-- By age, and for the last steps of a generation.
CREATE INDEX step_rows_by_generation ON step_rows (job, generation, step);
)",
    "ALTER TABLE jobs ADD COLUMN bfloat16 INTEGER NOT NULL DEFAULT 0;",
    // Of those that are there, stage 0; NULL: to be chosen.
    R"(
ALTER TABLE jobs ADD COLUMN zero_stage INTEGER;
UPDATE jobs SET zero_stage = 0;
)",
    // Of each row a line: generation, plan version, first and end step, and for
    // each worker its name and micro-batches: "3 1 40 55 w0:0+4 w1:4+4".
    "ALTER TABLE jobs ADD COLUMN ledger TEXT NOT NULL DEFAULT '';",
};

// Offsets in the header that every SQLite 3 file begins with.
constexpr char kMagic[] = "SQLite format 3";  // With its zero: 16 bytes.
constexpr size_t kUserVersionOffset = 60;
constexpr size_t kApplicationIdOffset = 68;
constexpr size_t kHeaderBytes = 100;

int64_t BigEndian32(const unsigned char* bytes) {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value = value << 8 | bytes[i];
  return static_cast<int32_t>(value);
}

absl::Status CheckVersion(const std::string& where, int64_t version) {
  if (version <= kStoreVersion) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      where, ": the store is of version ", version,
      ", and this program knows versions up to ", kStoreVersion,
      " only; run the newer program, or restore an older copy of the store"));
}

absl::Status SyncFolderOf(const std::string& path) {
  const std::string folder = path.substr(0, path.rfind('/'));
  const int file = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const int result = file < 0 ? -1 : fsync(file);
  const int error = errno;
  if (file >= 0) close(file);
  return result == 0
             ? absl::OkStatus()
             : absl::ErrnoToStatus(error, absl::StrCat(folder, ": sync"));
}

}  // namespace

const int kStoreVersion = std::size(kMigrations);

absl::Status CheckStoreHeader(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(path, ": open"));
  }
  unsigned char header[kHeaderBytes];
  const ssize_t size = pread(file, header, sizeof header, 0);
  const int error = errno;
  close(file);
  if (size < 0) return absl::ErrnoToStatus(error, absl::StrCat(path, ": read"));
  if (size < static_cast<ssize_t>(kHeaderBytes) ||
      std::memcmp(header, kMagic, sizeof kMagic) != 0) {
    return absl::DataLossError(absl::StrCat(
        path,
        ": byte 0: expected the header of a SQLite database; the file is "
        "damaged or not a store. Restore a copy, or move it away to "
        "start with an empty store (jobs are then forgotten)"));
  }
  if (BigEndian32(header + kApplicationIdOffset) != kStoreApplicationId) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": a database of another program (application id ",
                     BigEndian32(header + kApplicationIdOffset), " instead of ",
                     kStoreApplicationId, "); choose another store"));
  }
  return CheckVersion(path, BigEndian32(header + kUserVersionOffset));
}

absl::Status CreateStoreFile(const std::string& path) {
  // A crash on the way leaves a file under the other name, which the next
  // attempt replaces; under its own name the file is whole.
  const std::string draft = path + ".new";
  for (const char* suffix : {"", "-journal"}) {
    if (unlink((draft + suffix).c_str()) != 0 && errno != ENOENT) {
      return absl::ErrnoToStatus(errno,
                                 absl::StrCat(draft, suffix, ": remove"));
    }
  }
  {
    ASSIGN_OR_RETURN(SqliteDatabase database,
                     SqliteDatabase::Open(
                         draft, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE));
    RETURN_IF_ERROR(database.Execute("PRAGMA synchronous = FULL"));
    RETURN_IF_ERROR(database.Execute(
        absl::StrCat("PRAGMA application_id = ", kStoreApplicationId)));
    RETURN_IF_ERROR(MigrateStore(database));
  }
  if (rename(draft.c_str(), path.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(draft, ": rename"));
  }
  return SyncFolderOf(path);
}

absl::Status MigrateStore(SqliteDatabase& database) {
  ASSIGN_OR_RETURN(const int64_t version,
                   database.QueryInt("PRAGMA user_version"));
  // Also here: the header that was looked at may be older than the log.
  RETURN_IF_ERROR(CheckVersion("store", version));
  if (version == kStoreVersion) return absl::OkStatus();
  std::string script = "BEGIN IMMEDIATE;";
  for (int64_t v = version; v < kStoreVersion; ++v) script += kMigrations[v];
  absl::StrAppend(&script, "PRAGMA user_version = ", kStoreVersion,
                  "; COMMIT;");
  return database.Execute(script);
}

}  // namespace lockstep
