// Collectives among ranks that share memory.
//
// Every rank has a segment of 2 MiB, however large an array is, which all of
// them map.  An array passes through it in blocks:
//
//   its owner   puts its part of a block into a slot of its segment, marks it
//   the others  read it once it is marked, and mark that they have
//
// and the owner uses the slot again once all others have.  Of W ranks:
//
//   reduce-scatter  a rank puts the other ranks' slices, and adds to its own
//                   what the others have put for it, in rank order
//   all-reduce      so, and puts the sums in the slot too; the others copy
//   them.
//                   A rank puts block b + 1 before it sums block b and takes
//                   what others have summed of block b - 1: mostly, nobody
//                   waits
//   all-gather      a rank puts its slice, the others copy it
//   small all-reduce, barrier: a rank puts everything, and each reduces by
//                   itself
//
// Slices are those of ShardOf, but where a reduce-scatter says another, and
// sent_bytes() is what TCP would have sent.
//
// **Marks** are counters of blocks in the owner's segment, written with release
// once the data is there: what a rank has not finished is never seen.  With a
// block goes the call that it is of; ranks whose calls differ in kind, order or
// size fail with Internal instead of reading each other.
//
// **Waits** spin for some microseconds, then sleep on a futex in the own
// segment.  Connections over TCP stay, and notice what fails, see
// gloo_transport.h; they end such a wait like one for a transfer.  A sleeper
// also looks now and then at the sockets that memory came by, for who is gone:
// TCP tells of a rank that leaves without a failure only those that wait for
// something sent.
#ifndef WORKER_COMM_SHARED_MEMORY_COMMUNICATOR_H_
#define WORKER_COMM_SHARED_MEMORY_COMMUNICATOR_H_

#include <cstdint>
#include <memory>

#include "worker/comm/communicator.h"
#include "worker/comm/gloo_transport.h"
#include "worker/comm/shared_memory_offer.h"

namespace lockstep {

inline constexpr int kSharedMemoryWorldMax = 1024;

// What offers are to be made with.  `world` is at most kSharedMemoryWorldMax.
SharedMemoryOffer::Options SharedMemoryOptions(int rank, int world);

// `memory`: of offers with these options.  `transport` is connected, and its
// slots from 2^24 on are not used.
std::unique_ptr<Communicator> MakeSharedMemoryCommunicator(
    std::shared_ptr<GlooTransport> transport, SharedMemory memory);

}  // namespace lockstep

#endif  // WORKER_COMM_SHARED_MEMORY_COMMUNICATOR_H_
