// The agent's core in the hands of a test.
#ifndef WORKER_AGENT_AGENT_CORE_FIXTURE_H_
#define WORKER_AGENT_AGENT_CORE_FIXTURE_H_

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "worker/agent/agent_core.h"

namespace lockstep {

inline constexpr absl::Duration kLease = absl::Seconds(3);
inline constexpr absl::Duration kBeat = absl::Milliseconds(750);
inline const GenerationKey kKey{{"j"}, 1};
inline const GenerationKey kNextKey{{"j"}, 2};

inline AgentOptions Options() {
  AgentOptions options;
  options.worker = {"w1"};
  options.incarnation = {7};
  return options;
}

inline Command PrepareCommand(int64_t sequence, const GenerationKey& key) {
  return {sequence, Prepare{.key = key,
                            .rank = 1,
                            .workers = {{"w0"}, {"w1"}},
                            .spec = std::make_shared<std::string>("spec")}};
}

inline Command ReleaseCommand(int64_t sequence, const GenerationKey& key) {
  return {sequence, Release{key, "over"}};
}

inline HeldGeneration Held(const GenerationKey& key, Phase phase,
                           int64_t committed = 0) {
  HeldGeneration held;
  held.key = key;
  held.rank = 1;
  held.phase = phase;
  held.committed_step_count = committed;
  return held;
}

template <typename T>
std::vector<T> All(const AgentEffects& effects) {
  std::vector<T> found;
  for (const AgentEffect& effect : effects) {
    if (const T* e = std::get_if<T>(&effect)) found.push_back(*e);
  }
  return found;
}

// The core at a moment, with the effects of the last call.
class Subject {
 public:
  explicit Subject(const AgentOptions& options = Options())
      : core(AgentCore::Create(options).value()) {}

  // Runs `call` now; keeps its effects.
  template <typename Call>
  const AgentEffects& Do(Call call) {
    effects.clear();
    call();
    return effects;
  }

  const AgentEffects& Start() {
    return Do([&] { core.Start(now, effects); });
  }
  const AgentEffects& Tick(absl::Duration later) {
    now = now + later;
    return Do([&] { core.Tick(now, effects); });
  }
  const AgentEffects& Welcome(int64_t incarnation = 1) {
    return Do([&] {
      core.OnWelcome(now, {{incarnation}, kLease, kBeat}, effects);
    });
  }
  const AgentEffects& Closed(absl::Status status) {
    return Do([&] { core.OnStreamClosed(now, status, effects); });
  }
  const AgentEffects& Command(const struct Command& command) {
    return Do([&] { core.OnCommand(now, command, effects); });
  }
  const AgentEffects& Ack(int64_t sequence) {
    return Do([&] { core.OnReportsAck(now, sequence, effects); });
  }
  const AgentEffects& Ready(int64_t trainer = 1) {
    return Do([&] { core.OnTrainerReady(now, {trainer}, effects); });
  }
  const AgentEffects& Holds(std::optional<HeldGeneration> held,
                            int64_t trainer = 1) {
    return Do([&] { core.OnTrainerHolds(now, {trainer}, held, effects); });
  }
  const AgentEffects& Report(int64_t step, int64_t trainer = 1,
                             const GenerationKey& key = kKey) {
    return Do([&] {
      core.OnStepReport(now, {trainer}, key, step, std::to_string(step),
                        effects);
    });
  }
  const AgentEffects& Died(int64_t trainer, const std::string& how) {
    return Do([&] { core.OnTrainerDied(now, {trainer}, how, effects); });
  }

  // Connected, with a trainer that holds nothing.
  void Serve() {
    Start();
    Welcome();
    Ready();
  }
  // Connected, with a trainer that trains kKey.
  void Train() {
    Serve();
    Command(PrepareCommand(1, kKey));
    Holds(Held(kKey, Phase::kTraining));
  }
  // A broken stream is open again, and welcomed.
  void Reconnect(int64_t incarnation = 1) {
    Closed(absl::UnavailableError("broken"));
    Tick(absl::Seconds(1));
    Welcome(incarnation);
  }

  std::optional<Phase> HeldPhase() const {
    if (!core.status().held.has_value()) return std::nullopt;
    return core.status().held->phase;
  }

  AgentCore core;
  Instant now{absl::Hours(1)};
  AgentEffects effects;
};

}  // namespace lockstep

#endif  // WORKER_AGENT_AGENT_CORE_FIXTURE_H_
