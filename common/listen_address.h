// Where a daemon may listen, and whether it can.
#ifndef COMMON_LISTEN_ADDRESS_H_
#define COMMON_LISTEN_ADDRESS_H_

#include "absl/status/status.h"
#include "common/host_port.h"

namespace lockstep {

// Without `insecure` only loopback may be listened on: there is neither
// encryption nor authentication yet.
//
// Errors:
//   FailedPrecondition: it is another address.
absl::Status RequireLoopbackUnless(bool insecure, const HostPort& address);

// Why nothing can listen there: tries it, and gives the system's reason.  OK
// when it can after all.
absl::Status ProbeListenAddress(const HostPort& address);

}  // namespace lockstep

#endif  // COMMON_LISTEN_ADDRESS_H_
