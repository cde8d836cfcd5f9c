#include "worker/link/device_lock.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lockstep {
namespace {

// Where being woken is not possible (the holder's queue is full), and against
// wake-ups that several get for one lock: how long to wait before looking
// again.
constexpr absl::Duration kLookAgain = absl::Milliseconds(50);

// Keys are as long as people's names for things; a socket's name is not.
// FNV-1a, twice with different beginnings: 128 bits.
std::string SocketName(const std::string& key) {
  std::string name(1, '\0');
  absl::StrAppend(&name, "lockstep-trainer");
  for (uint64_t hash : {14695981039346656037u, 9650029242287828579u}) {
    for (const char c : key) {
      hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211u;
    }
    absl::StrAppend(&name, "-", absl::Hex(hash, absl::kZeroPad16));
  }
  return name;
}

absl::Status SystemError(const char* call) {
  return absl::InternalError(
      absl::StrCat("device lock: ", call, ": ", std::strerror(errno)));
}

int64_t PeerProcess(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return 0;
  }
  return credentials.pid;
}

}  // namespace

absl::StatusOr<DeviceLock> DeviceLock::Acquire(
    const std::string& key, absl::Duration timeout, Clock& clock,
    const std::function<void(const std::string& reason)>& on_wait) {
  const std::string name = SocketName(key);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, name.data(), name.size());
  const auto size =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  const auto* const where = reinterpret_cast<const sockaddr*>(&address);

  const Instant deadline = clock.Now() + timeout;
  bool said = false;
  for (;;) {
    UniqueFd lock(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!lock.has_value()) return SystemError("socket");
    if (bind(lock.get(), where, size) == 0) {
      if (listen(lock.get(), 64) != 0) return SystemError("listen");
      return DeviceLock(std::move(lock));
    }
    if (errno != EADDRINUSE) return SystemError("bind");

    UniqueFd waiter(
        socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!waiter.has_value()) return SystemError("socket");
    const bool connected = connect(waiter.get(), where, size) == 0;
    std::string reason = "an old trainer of this worker to leave the device";
    // If not, it ended just now, or has not called listen() yet.
    if (connected) {
      absl::StrAppend(&reason, ": process ", PeerProcess(waiter.get()));
    }
    const absl::Duration left = deadline - clock.Now();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(
          absl::StrCat("waited ", absl::FormatDuration(timeout), " for ",
                       reason, "; end it, or its agent, and try again"));
    }
    if (!said && connected) {
      said = true;
      on_wait(absl::StrCat("waiting for ", reason));
    }
    // The holder never accepts: the end of the connection is its end.
    pollfd ended{waiter.get(), POLLIN, 0};
    const absl::Duration wait = connected ? left : std::min(left, kLookAgain);
    const int rc =
        poll(connected ? &ended : nullptr, connected ? 1 : 0,
             static_cast<int>(absl::ToInt64Milliseconds(
                 std::min(wait, absl::Hours(1)) + absl::Milliseconds(1))));
    if (rc < 0 && errno != EINTR) return SystemError("poll");
  }
}

}  // namespace lockstep
