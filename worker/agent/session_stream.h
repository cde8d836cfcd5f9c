// One stream to the coordinator: the worker's side of WorkerService.Session.
//
// Each stream has a channel of its own, so that nothing of a broken connection
// is left over for the next: neither its back-off, which the agent's core
// decides, nor what is on the way.  Streams are numbered by their user, and say
// their number with all that they report, so that what an old one says late can
// be told from the current one's.
#ifndef WORKER_AGENT_SESSION_STREAM_H_
#define WORKER_AGENT_SESSION_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "lockstep/v1/worker_service.pb.h"

namespace lockstep {

struct SessionStreamOptions {
  std::string coordinator;  // HOST:PORT.

  // A connection on which nothing comes back for the first, after a probe has
  // been sent, and again for the second, is broken: the coordinator's host is
  // gone, or its process hangs.  The coordinator must allow such probes
  // (GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS).
  absl::Duration probe_interval = absl::Seconds(2);
  absl::Duration probe_timeout = absl::Seconds(2);

  // An attempt to connect that takes longer has failed.
  absl::Duration connect_timeout = absl::Seconds(3);

  // Messages that wait to be sent; with more, the stream is given up.
  size_t unsent_count_max = 1024;
};

// Thread-safe.
class SessionStream {
 public:
  // Both are called on gRPC's threads and must not block.
  struct Observer {
    // One message; the next comes after ReadNext().
    std::function<void(int64_t number, v1::CoordinatorMessage message)>
        on_message;
    // The stream has ended, with what the coordinator said or why it broke.
    // Exactly once, last; then the stream may be destroyed, and until then it
    // must not.
    std::function<void(int64_t number, absl::Status status)> on_closed;
  };

  // Begins to connect.
  static std::unique_ptr<SessionStream> Open(
      const SessionStreamOptions& options, int64_t number, Observer observer);

  virtual ~SessionStream() = default;

  // Queues a message.  A status replaces one that is last in the queue, since
  // it says all that that said.
  virtual void Send(v1::WorkerMessage message) = 0;

  // Asks for the next message.  Once after each.
  virtual void ReadNext() = 0;

  // Sends what is queued and then the end of what this side says: the worker
  // leaves for good.
  virtual void Finish() = 0;

  // Ends the stream at once.
  virtual void Cancel() = 0;
};

}  // namespace lockstep

#endif  // WORKER_AGENT_SESSION_STREAM_H_
