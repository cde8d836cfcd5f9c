// Where to listen: `host:port`.
#ifndef COORDINATOR_SERVICE_LISTEN_ADDRESS_H_
#define COORDINATOR_SERVICE_LISTEN_ADDRESS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep {

struct ListenAddress {
  std::string host;  // A name or an address; IPv6 without brackets.
  int port = 0;      // 0: any that is free.

  // Only processes of this machine can connect.
  bool IsLoopback() const;

  std::string ToString() const;
};

// `text`: host:port, with an IPv6 address in brackets.
//
// Errors:
//   InvalidArgument: it is nothing of the kind.
absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view text);

// Without `insecure` only loopback may be listened on: there is neither
// encryption nor authentication yet.
//
// Errors:
//   FailedPrecondition: it is another address.
absl::Status RequireLoopbackUnless(bool insecure, const ListenAddress& address);

// Why nothing can listen there: tries it, and gives the system's reason.  OK
// when it can after all.
absl::Status ProbeListenAddress(const ListenAddress& address);

}  // namespace lockstep

#endif  // COORDINATOR_SERVICE_LISTEN_ADDRESS_H_
