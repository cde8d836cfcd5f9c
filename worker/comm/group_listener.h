// How the ranks of a generation come to a communicator.
//
// In two phases, since addresses are exchanged through the coordinator:
//
//   listener = GroupListener::Listen(rank, world, options, clock)
//   ... send listener->addresses() out, get everybody's back ...
//   communicator = listener->Connect(peer_addresses, deadline)
//
// Connects over TCP, then tries what memory the ranks share.  What each has
// found it tells all others, over TCP; so all come to the same conclusion, and
// a rank that dies on the way ends it for all:
//
//   connected -> every rank has reached all others -> every rank has mapped all
//       |                     | no                          | no       | yes
//       |                     v                             v          v
//       | one rank: kTcp     TCP, or an error where one     |   shared memory
//       '------------------> rank insists <-----------------'
//
// Shared memory is for groups all of whose ranks share it.
#ifndef WORKER_COMM_GROUP_LISTENER_H_
#define WORKER_COMM_GROUP_LISTENER_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "worker/comm/collectives.h"
#include "worker/comm/communicator.h"
#include "worker/comm/gloo_transport.h"
#include "worker/comm/shared_memory_offer.h"

namespace lockstep {

struct GroupOptions {
  GlooOptions tcp;
  Collectives collectives = Collectives::kAuto;
};

class GroupListener {
 public:
  // Errors: those of GlooTransport::Listen.
  static absl::StatusOr<std::unique_ptr<GroupListener>> Listen(
      int rank, int world, const GroupOptions& options, Clock& clock);

  // Opaque bytes; entry i is for rank i to reach this one.
  const std::vector<std::string>& addresses() const { return addresses_; }

  // Once.  peer_addresses[i]: entry `rank` of what rank i's listener has.
  //
  // Errors:
  //   FailedPrecondition, without a failed_peer(): a rank insists on shared
  //     memory, which the ranks do not share; says who cannot, and why.
  //   Otherwise: those of GlooTransport::Connect, or what Abort was given.
  absl::StatusOr<std::unique_ptr<Communicator>> Connect(
      const std::vector<std::string>& peer_addresses, Instant deadline);

  // Once Connect has succeeded: OK if the communicator uses shared memory,
  // otherwise why not; the same on all ranks.
  const absl::Status& shared_memory() const { return shared_memory_; }

  // Ends Connect, and the communicator that came from it.  Thread-safe.
  void Abort(absl::Status why);

  // The rank that Connect failed at, if it was one.  Thread-safe.
  std::optional<int> failed_peer() const;

 private:
  struct Vote;

  GroupListener(Collectives collectives,
                std::shared_ptr<GlooTransport> transport);
  absl::Status TryToShare(GlooTransport& transport,
                          const std::vector<std::string>& offers);
  absl::Status Agree(GlooTransport& transport, uint64_t slot,
                     const absl::Status& mine);

  const Collectives collectives_;
  std::vector<std::string> addresses_;
  std::unique_ptr<SharedMemoryOffer> offer_;
  // OK, or why there is no offer; then why the ranks do not share memory.
  absl::Status shared_memory_;
  Mutex mutex_;
  // Until Connect has succeeded.
  std::shared_ptr<GlooTransport> owned_ ABSL_GUARDED_BY(mutex_);
  const std::weak_ptr<GlooTransport> transport_;
};

}  // namespace lockstep

#endif  // WORKER_COMM_GROUP_LISTENER_H_
