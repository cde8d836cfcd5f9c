// Keeps two trainers of one worker from using the device at once.
//
// A trainer that outlives its agent for a moment (one that is being torn down
// after SIGKILL may sit in the driver for seconds) still has the device's
// memory.  The next agent starts a new trainer at once; that one waits here
// until the old one is gone.
//
// The lock is a listening Unix socket with an abstract name.  It dies with its
// process, however that ends, leaves no file behind, needs no directory that
// can be written, and tells who holds it; those who wait are connected to it,
// and woken by its end.  A lock on a file would need a place that all agree on.
// Abstract names belong to the network namespace: containers do not see each
// other's, but a container that is restarted has lost all its processes.
#ifndef WORKER_LINK_DEVICE_LOCK_H_
#define WORKER_LINK_DEVICE_LOCK_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "worker/link/unique_fd.h"

namespace lockstep {

class DeviceLock {
 public:
  // Waits up to `timeout` until nobody else holds `key`.  `on_wait` is called
  // once, before the wait, if there is one, with words on whom for.
  //
  // Errors:
  //   DeadlineExceeded: it is still held; says by which process.
  //   Internal: the system refuses a socket.
  static absl::StatusOr<DeviceLock> Acquire(
      const std::string& key, absl::Duration timeout, Clock& clock,
      const std::function<void(const std::string& reason)>& on_wait);

 private:
  explicit DeviceLock(UniqueFd socket) : socket_(std::move(socket)) {}

  UniqueFd socket_;  // Held while it is open.
};

}  // namespace lockstep

#endif  // WORKER_LINK_DEVICE_LOCK_H_
