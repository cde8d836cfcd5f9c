#include "common/listen_address.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace lockstep {

absl::Status RequireLoopbackUnless(bool insecure, const HostPort& address) {
  if (insecure || IsLoopback(address.host)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      address.ToString(),
      ": not a loopback address, and connections are neither encrypted nor "
      "authenticated yet: whoever reaches the port controls jobs and workers. "
      "On a network that you trust, allow it with --insecure"));
}

absl::Status ProbeListenAddress(const HostPort& address) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int result = getaddrinfo(
      address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found);
  if (result != 0) {
    return absl::NotFoundError(absl::StrCat(
        address.ToString(), ": cannot listen: ", gai_strerror(result)));
  }
  absl::Status status;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    const int probe =
        socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol);
    if (probe < 0) continue;
    const int on = 1;
    setsockopt(probe, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(probe, at->ai_addr, at->ai_addrlen) != 0 ||
        listen(probe, 1) != 0) {
      status = absl::FailedPreconditionError(absl::StrCat(
          address.ToString(), ": cannot listen: ", std::strerror(errno),
          errno == EADDRINUSE ? "; choose another port, or stop what has it"
                              : ""));
    }
    close(probe);
  }
  freeaddrinfo(found);
  return status;
}

}  // namespace lockstep
