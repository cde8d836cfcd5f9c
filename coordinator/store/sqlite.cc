#include "coordinator/store/sqlite.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status.h"

namespace lockstep {
namespace {

constexpr int kBusyTimeoutMs = 5000;

absl::StatusCode CodeOf(int result) {
  switch (result & 0xFF) {
    case SQLITE_FULL:
      return absl::StatusCode::kResourceExhausted;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::StatusCode::kDataLoss;
    case SQLITE_PERM:
    case SQLITE_READONLY:
    case SQLITE_AUTH:
    case SQLITE_CANTOPEN:
      return absl::StatusCode::kPermissionDenied;
    case SQLITE_IOERR:
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_NOMEM:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::Status SqliteError(sqlite3* database, absl::string_view doing) {
  const int result = sqlite3_extended_errcode(database);
  const int system = sqlite3_system_errno(database);
  std::string text = absl::StrCat(doing, ": ", sqlite3_errmsg(database),
                                  " (SQLite result ", result, ")");
  if (system != 0 && (result & 0xFF) != SQLITE_CONSTRAINT) {
    absl::StrAppend(&text, ": ", std::strerror(system));
  }
  return absl::Status(CodeOf(result), text);
}

SqliteStatement::SqliteStatement(SqliteStatement&& other) noexcept
    : statement_(std::exchange(other.statement_, nullptr)) {}

SqliteStatement& SqliteStatement::operator=(SqliteStatement&& other) noexcept {
  std::swap(statement_, other.statement_);
  return *this;
}

SqliteStatement::~SqliteStatement() { sqlite3_finalize(statement_); }

void SqliteStatement::Bind(int parameter, int64_t value) {
  LS_CHECK(sqlite3_bind_int64(statement_, parameter, value) == SQLITE_OK);
}

void SqliteStatement::BindText(int parameter, absl::string_view text) {
  LS_CHECK(sqlite3_bind_text64(statement_, parameter, text.data(), text.size(),
                               SQLITE_STATIC, SQLITE_UTF8) == SQLITE_OK);
}

void SqliteStatement::BindBlob(int parameter, absl::string_view bytes) {
  // A null pointer would mean NULL, not an empty blob.
  LS_CHECK(sqlite3_bind_blob64(statement_, parameter,
                               bytes.empty() ? "" : bytes.data(), bytes.size(),
                               SQLITE_STATIC) == SQLITE_OK);
}

void SqliteStatement::BindNull(int parameter) {
  LS_CHECK(sqlite3_bind_null(statement_, parameter) == SQLITE_OK);
}

absl::StatusOr<bool> SqliteStatement::Step() {
  const int result = sqlite3_step(statement_);
  if (result == SQLITE_ROW) return true;
  if (result == SQLITE_DONE) return false;
  const absl::Status status =
      SqliteError(sqlite3_db_handle(statement_), sqlite3_sql(statement_));
  sqlite3_reset(statement_);
  return status;
}

absl::Status SqliteStatement::Run() {
  bool more = true;
  while (more) {
    ASSIGN_OR_RETURN(more, Step());
  }
  Reset();
  return absl::OkStatus();
}

// The result repeats the error of the last step, which was reported.
void SqliteStatement::Reset() { sqlite3_reset(statement_); }

int64_t SqliteStatement::Int(int column) const {
  return sqlite3_column_int64(statement_, column);
}

std::string SqliteStatement::Bytes(int column) const {
  const void* data = sqlite3_column_blob(statement_, column);
  const int size = sqlite3_column_bytes(statement_, column);
  return size == 0 ? std::string()
                   : std::string(static_cast<const char*>(data), size);
}

bool SqliteStatement::IsNull(int column) const {
  return sqlite3_column_type(statement_, column) == SQLITE_NULL;
}

absl::StatusOr<SqliteDatabase> SqliteDatabase::Open(const std::string& path,
                                                    int flags) {
  sqlite3* handle = nullptr;
  const int result = sqlite3_open_v2(path.c_str(), &handle, flags, nullptr);
  LS_CHECK(handle != nullptr);  // Else there is no memory at all.
  SqliteDatabase database(handle, path);
  if (result != SQLITE_OK) {
    return SqliteError(handle, absl::StrCat(path, ": open"));
  }
  sqlite3_busy_timeout(handle, kBusyTimeoutMs);
  return database;
}

SqliteDatabase::SqliteDatabase(SqliteDatabase&& other) noexcept
    : database_(std::exchange(other.database_, nullptr)),
      path_(std::move(other.path_)) {}

// _v2: also while statements are still there; they go with the last of them.
SqliteDatabase::~SqliteDatabase() { sqlite3_close_v2(database_); }

absl::Status SqliteDatabase::Execute(const std::string& sql) {
  if (sqlite3_exec(database_, sql.c_str(), nullptr, nullptr, nullptr) ==
      SQLITE_OK) {
    return absl::OkStatus();
  }
  return SqliteError(database_, absl::StrCat(path_, ": ", sql));
}

absl::StatusOr<SqliteStatement> SqliteDatabase::Prepare(absl::string_view sql) {
  SqliteStatement statement;
  if (sqlite3_prepare_v3(database_, sql.data(), static_cast<int>(sql.size()),
                         SQLITE_PREPARE_PERSISTENT, &statement.statement_,
                         nullptr) != SQLITE_OK) {
    return SqliteError(database_, absl::StrCat(path_, ": ", sql));
  }
  return statement;
}

absl::StatusOr<int64_t> SqliteDatabase::QueryInt(absl::string_view sql) {
  ASSIGN_OR_RETURN(SqliteStatement statement, Prepare(sql));
  ASSIGN_OR_RETURN(const bool found, statement.Step());
  if (!found) {
    return absl::DataLossError(absl::StrCat(path_, ": ", sql, ": no row"));
  }
  return statement.Int(0);
}

absl::StatusOr<std::string> SqliteDatabase::QueryText(absl::string_view sql) {
  ASSIGN_OR_RETURN(SqliteStatement statement, Prepare(sql));
  ASSIGN_OR_RETURN(const bool found, statement.Step());
  if (!found) {
    return absl::DataLossError(absl::StrCat(path_, ": ", sql, ": no row"));
  }
  return statement.Bytes(0);
}

}  // namespace lockstep
