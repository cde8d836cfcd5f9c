// Collectives over TCP, between processes and hosts without GPUs.
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
// Slices are those of ShardOf, but where a reduce-scatter says another. Receive
// buffers take (W - 1) x 1 MiB, however large the array.
//
// Calls of which ranks differ in kind, order or size never match, and end by
// the time-out instead of mixing up memory.
#ifndef WORKER_COMM_GLOO_COMMUNICATOR_H_
#define WORKER_COMM_GLOO_COMMUNICATOR_H_

#include <memory>

#include "worker/comm/communicator.h"
#include "worker/comm/gloo_transport.h"

namespace lockstep {

// `transport` is connected; its slots from 2^24 on become the communicator's.
std::unique_ptr<Communicator> MakeGlooCommunicator(
    std::shared_ptr<GlooTransport> transport);

}  // namespace lockstep

#endif  // WORKER_COMM_GLOO_COMMUNICATOR_H_
