// Small files that others read: whole or not at all.
#ifndef COMMON_FILE_WRITE_H_
#define COMMON_FILE_WRITE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace lockstep {

// Replaces the file at `path` by one with these bytes: a reader sees the old
// file or the new one, whole, also after a crash.
//
// Errors: the system's, with the path; the old file is then as it was.
absl::Status WriteFileAtomically(const std::string& path,
                                 absl::string_view bytes);

}  // namespace lockstep

#endif  // COMMON_FILE_WRITE_H_
