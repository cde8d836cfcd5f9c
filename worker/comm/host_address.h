// Which address of this host peers connect to, without asking any name server.
#ifndef WORKER_COMM_HOST_ADDRESS_H_
#define WORKER_COMM_HOST_ADDRESS_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep {

// A numeric address of this host: `host` itself when that is a numeric IPv4 or
// IPv6 address, otherwise the address of the network interface of that name
// ("eth0"): its first IPv4 address, or if it has none its first IPv6 address
// that is not link-local.
//
// Errors:
//   InvalidArgument: `host` is neither; the message lists the interfaces.
absl::StatusOr<std::string> NumericHostAddress(const std::string& host);

// What the interface that has `host` (as above) is said to carry; none for the
// loopback interface, and where the system does not say.
std::optional<double> LinkBytesPerSecond(const std::string& host);

// Whether `address`, a numeric one, can be listened on.
//
// Errors:
//   Unavailable: it is not this host's, or no port is left.
absl::Status CheckListenable(const std::string& address);

}  // namespace lockstep

#endif  // WORKER_COMM_HOST_ADDRESS_H_
