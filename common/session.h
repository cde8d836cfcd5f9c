// What a worker and the coordinator say to each other, as plain values: the
// messages of proto/lockstep/v1/worker_service.proto, which explains them, for
// code that decides and sees no proto.
#ifndef COMMON_SESSION_H_
#define COMMON_SESSION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "common/micro_batches.h"

namespace lockstep {

// What a rank does with the generation it holds.
enum class Phase {
  kPreparing,    // Opens the data, loads the model.
  kJoined,       // Prepared; waits for the other ranks.
  kConnecting,   // Connects to the other ranks.
  kTraining,     // Takes steps.
  kOutputReady,  // Trained to the end, output written, not yet committed.
  kFinished,     // The output is committed.
  kFailed,       // Could not go on; says why.
  kAborting,     // Lets go.
};

// By which way it exchanges gradients with the others.
enum class CollectivesInUse { kNone, kTcp, kSharedMemory };

// "PREPARING" and so on, as the API spells it.
absl::string_view PhaseName(Phase phase);

// Why a rank could not go on.
struct Failure {
  enum class Cause {
    kWorker,  // This worker's fault: another might do.
    kJob,     // Would fail on any worker.
    kPeer,    // Another rank's fault, or the network's.
  };
  Cause cause = Cause::kWorker;
  absl::StatusCode code = absl::StatusCode::kUnknown;
  std::string message;
  std::optional<int> peer_rank;  // With kPeer: the rank it could not reach.
  friend bool operator==(const Failure&, const Failure&) = default;
};

// Which steps of a job a generation took, and who ran which micro-batches.
struct LedgerRow {
  int64_t generation = 0;
  int64_t plan_version = 1;
  int64_t first_step = 0;
  int64_t end_step = 0;           // The first one that is not its own.
  std::vector<WorkerId> workers;  // In order of rank.
  std::vector<MicroBatchRange> micro_batches;  // Of each.
  friend bool operator==(const LedgerRow&, const LedgerRow&) = default;
};

// A generation, as one rank sees it.
struct HeldGeneration {
  GenerationKey key;
  int rank = 0;
  Phase phase = Phase::kPreparing;
  int64_t committed_step_count = 0;  // The next step's number.
  int64_t max_steps = 0;             // Of the job; 0 until known.
  // From kJoined on, also while connecting: a coordinator that starts again
  // makes the other ranks' Start of it.
  std::vector<std::string> addresses;  // Entry i for rank i; opaque.
  std::string nonce;                   // Of rank 0.
  // Of rank 0: the step that it can begin with, from kJoined on; and whose the
  // steps before are, all of them, in order.
  int64_t first_step = 0;
  std::vector<LedgerRow> ledger;
  std::optional<Failure> failure;  // kFailed.
  std::string detail;              // For people.
  CollectivesInUse collectives = CollectivesInUse::kNone;
  friend bool operator==(const HeldGeneration&,
                         const HeldGeneration&) = default;
};

// Where a worker stands: whole, every time.
struct WorkerStatus {
  int64_t applied_sequence = 0;
  bool trainer_ready = false;
  int trainer_death_count = 0;
  std::string last_trainer_death;
  std::optional<HeldGeneration> held;
  friend bool operator==(const WorkerStatus&, const WorkerStatus&) = default;
};

// A worker's device, as the worker describes it.
// What a device sustains a second, each 0 if not known: as
// lockstep.v1.DeviceRates.
struct DeviceRates {
  double float32_flops = 0;
  double bfloat16_flops = 0;
  double memory_bytes = 0;
  double shared_memory_bytes = 0;
  double network_bytes = 0;
  friend bool operator==(const DeviceRates&, const DeviceRates&) = default;
};

struct DeviceDescription {
  std::string kind;           // "cpu" or "cuda".
  std::string model;          // For people.
  std::string numeric_class;  // Same class, same bits.
  bool has_bfloat16 = false;  // Multiplies bfloat16; a matter of the class.
  int64_t memory_bytes = 0;
  int thread_count = 0;
  std::string host;
  int64_t process_id = 0;
  std::string version;
  DeviceRates rates;
  friend bool operator==(const DeviceDescription&,
                         const DeviceDescription&) = default;
};

struct Hello {
  WorkerId worker;
  WorkerIncarnation incarnation;
  int64_t stream = 0;  // Larger in each stream of this incarnation, from 1.
  DeviceDescription device;
  WorkerStatus status;
  // Of whom status.applied_sequence counts commands; 0 if of nobody.
  CoordinatorIncarnation coordinator_incarnation;
};

struct Welcome {
  CoordinatorIncarnation coordinator_incarnation;
  absl::Duration lease;
  absl::Duration beat_interval;
};

// Take a place in a generation.
struct Prepare {
  GenerationKey key;
  int rank = 0;
  std::vector<WorkerId> workers;  // In order of rank; as many as the world.
  std::shared_ptr<const std::string> spec;  // Serialized JobSpec; not null.
  std::optional<int> zero_stage;            // Takes the place of the spec's.
};

// All ranks are prepared: connect and train.
struct Start {
  GenerationKey key;
  std::vector<std::string> peer_addresses;  // From this rank to rank i.
  int64_t first_step = 0;
  int64_t plan_version = 1;
  std::vector<MicroBatchRange> micro_batches;  // In order of rank.
  std::string nonce;
};

// Let go of a generation; nothing of it is kept.
struct Release {
  GenerationKey key;
  std::string reason;
};

// Make the written output the job's result.
struct CommitOutput {
  GenerationKey key;
};

using CommandBody = std::variant<Prepare, Start, Release, CommitOutput>;

struct Command {
  int64_t sequence = 0;  // From 1, without gaps.
  CommandBody body;
};

// The generation that a command is about.
inline const GenerationKey& KeyOf(const CommandBody& body) {
  return std::visit([](const auto& b) -> const GenerationKey& { return b.key; },
                    body);
}

}  // namespace lockstep

#endif  // COMMON_SESSION_H_
