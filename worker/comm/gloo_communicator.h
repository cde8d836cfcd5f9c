// Collectives over TCP, between processes and hosts without GPUs.
//
// Made in two phases, since addresses are exchanged through the coordinator:
//
//   listener = GlooListener::Listen(rank, world, options, clock)
//   ... send listener->addresses() out, get everybody's back ...
//   communicator = listener->Connect(peer_addresses, deadline)
//
// Every rank exchanges with every other directly.  Of W ranks and n elements:
//
//   reduce-scatter  each rank sends slice j straight to rank j and adds what it
//                   receives to its own, in rank order: (n - n/W) sent
//   all-gather      each rank sends its slice to all: (W - 1) n/W sent
//   all-reduce      both, a chunk being sent on as soon as it is summed:
//                   2 n (W - 1)/W sent, which is the least possible
//   small all-reduce, barrier: one round; everybody sends everything to
//                   everybody and reduces by itself: (W - 1) n sent
//
// Slices are those of ShardOf.  Receive buffers take (W - 1) x 1 MiB, however
// large the array.
//
// Calls of which ranks differ in kind, order or size never match, and end by
// the time-out instead of mixing up memory.
#ifndef WORKER_COMM_GLOO_COMMUNICATOR_H_
#define WORKER_COMM_GLOO_COMMUNICATOR_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "worker/comm/communicator.h"
#include "worker/comm/gloo_transport.h"

namespace lockstep {

class GlooListener {
 public:
  // Errors: those of GlooTransport::Listen.
  static absl::StatusOr<std::unique_ptr<GlooListener>> Listen(
      int rank, int world, const GlooOptions& options, Clock& clock);

  // Opaque bytes; entry i is for rank i to reach this one.
  const std::vector<std::string>& addresses() const { return addresses_; }

  // Once.  peer_addresses[i]: entry `rank` of what rank i's listener has.
  //
  // Errors: those of GlooTransport::Connect, or what Abort was given.
  absl::StatusOr<std::unique_ptr<Communicator>> Connect(
      const std::vector<std::string>& peer_addresses, Instant deadline);

  // Ends Connect, and the communicator that came from it.  Thread-safe.
  void Abort(absl::Status why);

  // The rank that Connect failed at, if it was one.  Thread-safe.
  std::optional<int> failed_peer() const;

 private:
  explicit GlooListener(std::shared_ptr<GlooTransport> transport);

  const std::vector<std::string> addresses_;
  Mutex mutex_;
  // Until Connect has succeeded.
  std::shared_ptr<GlooTransport> owned_ ABSL_GUARDED_BY(mutex_);
  const std::weak_ptr<GlooTransport> transport_;
};

}  // namespace lockstep

#endif  // WORKER_COMM_GLOO_COMMUNICATOR_H_
