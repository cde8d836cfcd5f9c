// Pages of lists: sizes and tokens.
#ifndef COORDINATOR_SERVICE_PAGE_H_
#define COORDINATOR_SERVICE_PAGE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep {

// 0 is `standard`; more than `max` is `max`.
//
// Errors:
//   InvalidArgument: negative.
absl::StatusOr<int> PageSize(int32_t asked, int standard, int max);

// A token says where the next page begins, and of which list: `list` is any
// text that names the call and its other arguments.  URL-safe, and opaque to
// clients.
std::string MakePageToken(absl::string_view list, absl::string_view place);

// The place in a token that MakePageToken made of the same list; empty of an
// empty token.
//
// Errors:
//   InvalidArgument: it is another list's, or none.
absl::StatusOr<std::string> ParsePageToken(absl::string_view list,
                                           absl::string_view token);

}  // namespace lockstep

#endif  // COORDINATOR_SERVICE_PAGE_H_
