// The tables of the store, and how older ones become today's.
#ifndef COORDINATOR_STORE_SCHEMA_H_
#define COORDINATOR_STORE_SCHEMA_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/store/sqlite.h"

namespace lockstep {

// "LKST": marks a SQLite file as a store of ours.
inline constexpr int32_t kStoreApplicationId = 0x4C4B5354;

// Of the newest schema; the database's user_version.
extern const int kStoreVersion;

// Whether the file at `path` is a store that this program can take, judged by
// its header, without opening it as a database: what is not ours must not be
// touched, not even by recovery.
//
// Errors:
//   NotFound: there is no file.
//   FailedPrecondition: another program's, or of a newer version.
//   DataLoss: not a SQLite database.
absl::Status CheckStoreHeader(const std::string& path);

// Creates the store's database at `path`, at once: under another name first.
absl::Status CreateStoreFile(const std::string& path);

// Brings an open store to kStoreVersion, in one transaction.
absl::Status MigrateStore(SqliteDatabase& database);

}  // namespace lockstep

#endif  // COORDINATOR_STORE_SCHEMA_H_
