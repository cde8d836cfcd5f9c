// SQLite's C interface, as values that close themselves and Statuses.
#ifndef COORDINATOR_STORE_SQLITE_H_
#define COORDINATOR_STORE_SQLITE_H_

#include <sqlite3.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep {

// A prepared statement, to be used again and again.  Not thread-safe.
class SqliteStatement {
 public:
  SqliteStatement() = default;
  SqliteStatement(SqliteStatement&& other) noexcept;
  SqliteStatement& operator=(SqliteStatement&& other) noexcept;
  ~SqliteStatement();

  // Parameters count from 1, in the order of the statement's `?`.  Text and
  // blobs must live until the statement is stepped and reset.
  void Bind(int parameter, int64_t value);
  void BindText(int parameter, absl::string_view text);
  void BindBlob(int parameter, absl::string_view bytes);
  void BindNull(int parameter);

  // To the next row; false when there is none.
  absl::StatusOr<bool> Step();

  // Runs to the end and gets ready for the next use.
  absl::Status Run();

  // Ready for the next use; bound values are kept.
  void Reset();

  // Of the current row, from 0.
  int64_t Int(int column) const;
  std::string Bytes(int column) const;
  bool IsNull(int column) const;

 private:
  friend class SqliteDatabase;
  sqlite3_stmt* statement_ = nullptr;
};

// A connection.  Not thread-safe.
class SqliteDatabase {
 public:
  // `flags` as sqlite3_open_v2 takes them.  A connection that finds another
  // writing waits a few seconds.
  static absl::StatusOr<SqliteDatabase> Open(const std::string& path,
                                             int flags);
  SqliteDatabase(SqliteDatabase&& other) noexcept;
  SqliteDatabase& operator=(SqliteDatabase&&) = delete;
  ~SqliteDatabase();

  // One or more statements without results.
  absl::Status Execute(const std::string& sql);
  absl::StatusOr<SqliteStatement> Prepare(absl::string_view sql);

  // The first column of the first row.
  absl::StatusOr<int64_t> QueryInt(absl::string_view sql);
  absl::StatusOr<std::string> QueryText(absl::string_view sql);

  // Rows that the last statement inserted, updated or deleted.
  int64_t changes() const { return sqlite3_changes64(database_); }

 private:
  SqliteDatabase(sqlite3* database, std::string path)
      : database_(database), path_(std::move(path)) {}

  sqlite3* database_ = nullptr;
  std::string path_;
};

// A Status for what SQLite last answered on `database`: Unavailable,
// ResourceExhausted, DataLoss, PermissionDenied or Internal, with its words.
absl::Status SqliteError(sqlite3* database, absl::string_view doing);

}  // namespace lockstep

#endif  // COORDINATOR_STORE_SQLITE_H_
