#include "worker/comm/test_group.h"

#include <string>
#include <thread>

#include "absl/time/time.h"
#include "common/check.h"
#include "common/clock.h"
#include "worker/comm/group_listener.h"
#include "worker/comm/loopback_communicator.h"

namespace lockstep {
namespace {

std::vector<std::unique_ptr<Communicator>> MakeProcessGroup(GroupKind kind,
                                                            int world) {
  Clock& clock = RealClock();
  std::vector<std::unique_ptr<GroupListener>> listeners;
  for (int rank = 0; rank < world; ++rank) {
    auto listener = GroupListener::Listen(
        rank, world, {.collectives = CollectivesOf(kind)}, clock);
    LS_CHECK(listener.ok());
    listeners.push_back(*std::move(listener));
  }
  std::vector<std::unique_ptr<Communicator>> group(world);
  ForEachRank(world, [&](int rank) {
    std::vector<std::string> addresses;
    for (const auto& l : listeners) addresses.push_back(l->addresses()[rank]);
    auto end =
        listeners[rank]->Connect(addresses, clock.Now() + absl::Seconds(60));
    LS_CHECK(end.ok());
    group[rank] = *std::move(end);
  });
  return group;
}

}  // namespace

std::string NameOf(GroupKind kind) {
  switch (kind) {
    case GroupKind::kLoopback:
      return "Loopback";
    case GroupKind::kGloo:
      return "Gloo";
    case GroupKind::kSharedMemory:
      return "SharedMemory";
  }
  return "";
}

Collectives CollectivesOf(GroupKind kind) {
  return kind == GroupKind::kSharedMemory ? Collectives::kSharedMemory
                                          : Collectives::kTcp;
}

std::vector<std::unique_ptr<Communicator>> MakeTestGroup(GroupKind kind,
                                                         int world) {
  return kind == GroupKind::kLoopback ? MakeLoopbackGroup(world)
                                      : MakeProcessGroup(kind, world);
}

void ForEachRank(int world, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) threads.emplace_back(body, rank);
  for (std::thread& t : threads) t.join();
}

}  // namespace lockstep
