// How ranks find out whether they share memory, and come to share it.
//
// Not by the name of a host, which says too little (containers) or too much
// (network namespaces): each rank tries.  It has a segment, and a socket with
// an abstract name, which leaves nothing behind either.  Name and a nonce are
// its offer, which reaches the other ranks through the coordinator.  Then:
//
//   Reach     connects to every other rank, sends the nonce of its offer, which
//             none but a rank of this generation knows, and the segment
//   (all ranks have reached all, and know it)
//   Collect   takes what the others have sent, maps it, and reads a number from
//             it that came beside it
//
// Neither waits for anything.  Both sides look at the other's user first.  A
// segment that was passed and read is proof that memory is shared; whatever
// goes wrong is none.
#ifndef WORKER_COMM_SHARED_MEMORY_OFFER_H_
#define WORKER_COMM_SHARED_MEMORY_OFFER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/comm/shared_segment.h"
#include "worker/link/unique_fd.h"

namespace lockstep {

// What ranks share, as one of them sees it.
struct SharedMemory {
  std::vector<SharedSegment> segments;  // Entry i is rank i's.

  // Connections from and to the other ranks: theirs_[i] ends when rank i does,
  // or shuts down its `mine`.  The own entries are empty.
  std::vector<UniqueFd> theirs;
  std::vector<UniqueFd> mine;
};

class SharedMemoryOffer {
 public:
  struct Options {
    int rank = 0;
    int world = 1;
    // Of every rank's segment, the same on all.  Its first 8 bytes are not the
    // owner's; the other ranks can write the first `writable_bytes`.
    int64_t segment_bytes = 0;
    int64_t writable_bytes = 0;
  };

  // Errors:
  //   ResourceExhausted, Unavailable: as SharedSegment::Create, or there is no
  //     socket.
  static absl::StatusOr<std::unique_ptr<SharedMemoryOffer>> Make(
      const Options& options);

  // Opaque; the same for every rank.
  const std::string& bytes() const { return bytes_; }

  // offers[i]: the bytes() of rank i, empty if it makes no offer; the own entry
  // is not read.
  //
  // Errors:
  //   Unavailable: a rank shares no memory with this one; says which and why.
  absl::Status Reach(const std::vector<std::string>& offers);

  // Once Reach has succeeded everywhere.  Errors: as Reach.
  absl::Status Collect();

  // After Collect, once; nothing is left of the offer.
  SharedMemory Take();

 private:
  struct Hello;

  explicit SharedMemoryOffer(const Options& options);
  absl::Status Open();
  absl::Status ReachOne(int peer, const std::string& offer);
  absl::Status TakeOne(UniqueFd connection, std::vector<std::string>& why);

  const Options options_;
  std::string bytes_;
  uint64_t proof_ = 0;  // What is in the segment.
  UniqueFd listener_;
  SharedMemory shared_;
};

}  // namespace lockstep

#endif  // WORKER_COMM_SHARED_MEMORY_OFFER_H_
