#include "coordinator/service/listen_address.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/printable.h"

namespace lockstep {

bool ListenAddress::IsLoopback() const {
  // Names are not looked up: what they mean may change.
  if (host == "localhost" || host == "::1") return true;
  if (!absl::StartsWith(host, "127.")) return false;
  for (const char c : host) {
    if ((c < '0' || c > '9') && c != '.') return false;
  }
  return true;
}

std::string ListenAddress::ToString() const {
  return absl::StrContains(host, ':') ? absl::StrCat("[", host, "]:", port)
                                      : absl::StrCat(host, ":", port);
}

absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view text) {
  const absl::Status fault = absl::InvalidArgumentError(absl::StrCat(
      "expected host:port, such as 127.0.0.1:7600 or [::1]:7600, got ",
      Quoted(text)));
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return fault;
  ListenAddress address;
  absl::string_view host = text.substr(0, colon);
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) {
    host = host.substr(1, host.size() - 2);
    if (!absl::StrContains(host, ':')) return fault;
  } else if (absl::StrContains(host, ':')) {
    return fault;
  }
  if (host.empty() || absl::StrContains(host, '/')) return fault;
  address.host = std::string(host);
  if (!absl::SimpleAtoi(text.substr(colon + 1), &address.port) ||
      address.port < 0 || address.port > 65'535) {
    return fault;
  }
  return address;
}

absl::Status RequireLoopbackUnless(bool insecure,
                                   const ListenAddress& address) {
  if (insecure || address.IsLoopback()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      address.ToString(),
      ": not a loopback address, and connections are neither encrypted nor "
      "authenticated yet: whoever reaches the port controls jobs and workers. "
      "On a network that you trust, allow it with --insecure"));
}

absl::Status ProbeListenAddress(const ListenAddress& address) {
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
          "; choose another --listen, or stop what has it"));
    }
    close(probe);
  }
  freeaddrinfo(found);
  return status;
}

}  // namespace lockstep
