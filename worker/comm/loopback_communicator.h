// Collectives among threads of one process, over their own memory.
//
// The working fake of every test that needs ranks, and in production the
// communicator of a world of one, which needs no network.  Beyond the interface
// it checks that all ranks make the same call and ends the group with Internal,
// naming both calls, when they do not.
//
// There is no time-out: a rank that never calls is waited for until an Abort.
#ifndef WORKER_COMM_LOOPBACK_COMMUNICATOR_H_
#define WORKER_COMM_LOOPBACK_COMMUNICATOR_H_

#include <memory>
#include <vector>

#include "worker/comm/communicator.h"

namespace lockstep {

// The ends of a new group, entry i for rank i; `world` is positive.  Each end
// is used by one thread.  An Abort of one end fails the others with Aborted;
// destroying one fails what the others still wait for, and all they call later,
// with Unavailable.
std::vector<std::unique_ptr<Communicator>> MakeLoopbackGroup(int world);

}  // namespace lockstep

#endif  // WORKER_COMM_LOOPBACK_COMMUNICATOR_H_
