// The coordinator's gRPC server.
#ifndef COORDINATOR_SERVICE_SERVER_H_
#define COORDINATOR_SERVICE_SERVER_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/host_port.h"
#include "coordinator/service/shell.h"
#include "coordinator/store/store.h"

namespace lockstep {

struct ServerOptions {
  HostPort listen;

  // Without this only loopback is served: there is no encryption and no
  // authentication yet.
  bool insecure = false;

  // A connection whose other end does not answer is given up after about twice
  // this.  Positive.
  absl::Duration keepalive = absl::Seconds(3);
};

// JobService, MonitorService, WorkerService, health and reflection over one
// shell.  Serving from Start() to Stop().
class Server {
 public:
  virtual ~Server() = default;  // Stop()s.

  // All but the options must outlive it.
  //
  // Errors:
  //   FailedPrecondition: the address is not loopback and `insecure` is not
  //     set; or it is taken, or not this machine's.
  static absl::StatusOr<std::unique_ptr<Server>> Start(
      const ServerOptions& options, Shell& shell, Store& store, Clock& clock);

  // Bound; the one asked for, unless that was 0.
  virtual int port() const = 0;

  // Turns health to NOT_SERVING, stops the shell, which ends all streams with
  // UNAVAILABLE, and waits for calls under way, for a moment.
  virtual void Stop() = 0;
};

}  // namespace lockstep

#endif  // COORDINATOR_SERVICE_SERVER_H_
