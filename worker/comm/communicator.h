// Collectives among the ranks of one generation.
//
// Every rank makes the same calls, in the same order, with the same sizes.
// Collectives are called from one thread; Abort from any.  Memory is host
// memory.  The first error ends the communicator: every later call returns it.
// Sums are of integers, so that their result does not depend on how they are
// grouped.
#ifndef WORKER_COMM_COMMUNICATOR_H_
#define WORKER_COMM_COMMUNICATOR_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"

namespace lockstep {

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world() const = 0;

  // Each of these:
  //
  // Errors:
  //   Unavailable: the connection to a rank broke, or it was silent for too
  //     long; failed_peer() says which, where known.
  //   Otherwise: what Abort was given.

  // data[i] = the sum (modulo 2^64) of all ranks' data[i].
  virtual absl::Status AllReduceSum(int64_t* data, int64_t n) = 0;

  // data[i] = the largest of all ranks' data[i].
  virtual absl::Status AllReduceMax(int64_t* data, int64_t n) = 0;

  // Afterwards, elements PartOf({0, n}, part, rank) of data hold the sums of
  // all ranks; the others are unspecified.  part: at least n / world.
  virtual absl::Status ReduceScatterSum(int64_t* data, int64_t n,
                                        int64_t part) = 0;

  // Before, elements ShardOf({0, n}, rank, world) of data, each of
  // `element_bytes`, are this rank's; afterwards all ranks have all of them.
  virtual absl::Status AllGather(void* data, int64_t n,
                                 int64_t element_bytes) = 0;

  // data[0, n) of rank `root` goes to all.
  virtual absl::Status Broadcast(void* data, int64_t bytes, int root) = 0;

  // Returns once every rank has called it.
  virtual absl::Status Barrier() = 0;

  // Ends the communicator: a collective under way, and every later one, returns
  // `why` (an error), within milliseconds.  The first call counts. Thread-safe.
  virtual void Abort(absl::Status why) = 0;

  // The rank whose connection failed first, if one did.  Thread-safe.
  virtual std::optional<int> failed_peer() const = 0;

  // Payload bytes this rank has handed to other ranks, however they went there:
  // as common/collective_bytes.h says.  Thread-safe.
  virtual int64_t sent_bytes() const = 0;
};

}  // namespace lockstep

#endif  // WORKER_COMM_COMMUNICATOR_H_
