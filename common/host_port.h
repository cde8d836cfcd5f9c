// Addresses as people write them: HOST:PORT, with an IPv6 host in brackets.
#ifndef COMMON_HOST_PORT_H_
#define COMMON_HOST_PORT_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep {

struct HostPort {
  std::string host;  // Without brackets; a name or an address.  Not empty.
  int port = 0;      // 0 to 65,535.

  // As it was read.
  std::string ToString() const;
};

// Errors:
//   InvalidArgument: it is no HOST:PORT.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text);

// Whether `host` names this machine alone and needs no network: `localhost`, an
// address of 127.0.0.0/8, or ::1.  Names are not looked up.
bool IsLoopback(const std::string& host);

}  // namespace lockstep

#endif  // COMMON_HOST_PORT_H_
