// Communicators for tests: all ranks of a group in one process, a thread each.
#ifndef WORKER_COMM_TEST_GROUP_H_
#define WORKER_COMM_TEST_GROUP_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "worker/comm/collectives.h"
#include "worker/comm/communicator.h"

namespace lockstep {

enum class GroupKind { kLoopback, kGloo, kSharedMemory };

// Those of real generations.
inline constexpr GroupKind kProcessGroupKinds[] = {GroupKind::kGloo,
                                                   GroupKind::kSharedMemory};

std::string NameOf(GroupKind kind);

// What makes a listener come to a communicator of this kind.
Collectives CollectivesOf(GroupKind kind);

// Entry i is rank i's end.
std::vector<std::unique_ptr<Communicator>> MakeTestGroup(GroupKind kind,
                                                         int world);

// Runs `body` for every rank, each in a thread of its own, and joins them.
void ForEachRank(int world, const std::function<void(int rank)>& body);

}  // namespace lockstep

#endif  // WORKER_COMM_TEST_GROUP_H_
