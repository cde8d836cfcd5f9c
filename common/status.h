// Passing errors on, with more said on the way.
#ifndef COMMON_STATUS_H_
#define COMMON_STATUS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

// Returns from the function when `expression`, a Status, is an error.
#define RETURN_IF_ERROR(expression)                                            \
  do {                                                                         \
    if (absl::Status ls_status = (expression); !ls_status.ok()) [[unlikely]] { \
      return ls_status;                                                        \
    }                                                                          \
  } while (false)

// Sets `lhs` to the value of `expression`, a StatusOr, or returns its error.
#define ASSIGN_OR_RETURN(lhs, expression) \
  LS_ASSIGN_OR_RETURN_(LS_CONCAT_(ls_statusor_, __LINE__), lhs, expression)
#define LS_CONCAT_INNER_(a, b) a##b
#define LS_CONCAT_(a, b) LS_CONCAT_INNER_(a, b)
#define LS_ASSIGN_OR_RETURN_(statusor, lhs, expression) \
  auto statusor = (expression);                         \
  if (!statusor.ok()) [[unlikely]] {                    \
    return statusor.status();                           \
  }                                                     \
  lhs = *std::move(statusor)

namespace lockstep {

// The same code, with `context` and a colon before the message.  OK stays OK.
inline absl::Status Annotate(const absl::Status& status,
                             absl::string_view context) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat(context, ": ", status.message()));
}

}  // namespace lockstep

#endif  // COMMON_STATUS_H_
