// Carries out the core's effects in memory, as the service does with a store
// and streams, and fails the test when they break what every caller relies on:
//
//   - What is sent, welcomed or published was stored before, if it is durable.
//   - A job's generation never goes back, a final state is never left, and one
//     generation has one membership.
//   - Of a stream the first message is the welcome; commands are numbered
//     without gaps from the first unacknowledged one; after its end comes
//     nothing.
//   - A worker is in at most one active generation.
//   - After every call what was last published is what the core knows.
#ifndef COORDINATOR_CORE_FAKE_SHELL_H_
#define COORDINATOR_CORE_FAKE_SHELL_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/coordinator.h"
#include "coordinator/core/effects.h"

namespace lockstep {

class FakeShell {
 public:
  struct Stream {
    std::optional<Welcome> welcome;
    std::vector<Command> commands;
    std::optional<absl::Status> closed;  // By the core.
  };

  // The stream is open from now on.
  void Open(SessionId session) { streams_[session]; }

  // Call with the effects of one call to `core`.
  void Carry(const Effects& effects, const Coordinator& core);

  // Forgets all but the store, as a crash does.
  void Crash() {
    streams_.clear();
    jobs_.clear();
    workers_.clear();
  }

  const std::map<JobId, JobRecord>& store() const { return store_; }
  const std::map<JobId, JobRecord>& jobs() const { return jobs_; }
  const std::map<WorkerId, WorkerView>& workers() const { return workers_; }
  bool Knows(SessionId session) const { return streams_.count(session) > 0; }
  const Stream& stream(SessionId session) const { return streams_.at(session); }

 private:
  void Persist(const JobRecord& to);
  void CheckCommand(const SendCommand& send);
  void CheckAtRest(const Coordinator& core);

  std::map<JobId, JobRecord> store_;
  std::map<JobId, JobRecord> jobs_;         // As published.
  std::map<WorkerId, WorkerView> workers_;  // As published.
  std::map<SessionId, Stream> streams_;
};

// One line, for comparing what two runs did.
std::string Describe(const Effect& effect);

}  // namespace lockstep

#endif  // COORDINATOR_CORE_FAKE_SHELL_H_
