// JSON as the standard has it, and nothing that two readers could take
// differently.
#ifndef WORKER_CHECKPOINT_STRICT_JSON_H_
#define WORKER_CHECKPOINT_STRICT_JSON_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace lockstep {

// Parses `text`, which stands at byte `first_byte` of a file.
//
// Errors:
//   InvalidArgument: bad UTF-8 or JSON, with the byte of the file; an object
//     names a key twice.
absl::StatusOr<nlohmann::json> ParseStrictJson(absl::string_view text,
                                               int64_t first_byte = 0);

// Reads and parses a whole file of at most 64 MiB.  Errors begin with the path.
absl::StatusOr<nlohmann::json> ReadStrictJsonFile(const std::string& path);

}  // namespace lockstep

#endif  // WORKER_CHECKPOINT_STRICT_JSON_H_
