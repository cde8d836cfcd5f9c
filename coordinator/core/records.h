// What the coordinator knows of jobs and workers, as plain values.
#ifndef COORDINATOR_CORE_RECORDS_H_
#define COORDINATOR_CORE_RECORDS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "common/memory_plan.h"
#include "common/session.h"

namespace lockstep {

// Where a job stands.
//
//   QUEUED --> FORMING --> RUNNING --> COMPLETED
//                ^  |        |
//                |  v        v
//              RECOVERING <--+          any --> CANCELLED, FAILED
//
// The numbers are stored: never renumber.
enum class JobState {
  kQueued = 1,
  kForming = 2,
  kRunning = 3,
  kRecovering = 4,
  kCompleted = 5,
  kCancelled = 6,
  kFailed = 7,
};

// "QUEUED" and so on, as the API spells it.
absl::string_view JobStateName(JobState state);

inline bool IsFinal(JobState state) {
  return state == JobState::kCompleted || state == JobState::kCancelled ||
         state == JobState::kFailed;
}

// What placing a job depends on, taken from its spec.
struct JobNeeds {
  int priority = 0;
  int min_workers = 1;
  int max_workers = 1;    // >= min_workers.
  int micro_batches = 1;  // Of a step; >= min_workers.
  int failures_max = 5;
  std::string output_directory;
  bool bfloat16 = false;  // Of its workers' devices.
  // The last two are not stored, but made of the spec.  None: whichever is the
  // lowest that the workers hold, in each generation anew.
  std::optional<int> zero_stage;
  std::optional<MemoryNeeds> memory;  // Of each of min_workers, if known.
  friend bool operator==(const JobNeeds&, const JobNeeds&) = default;
};

// A job, as far as it must survive the coordinator.
struct JobRecord {
  JobId id;
  int64_t order = 0;  // Of submission, from 1; never reused.
  std::string request_id;
  std::string spec_digest;
  std::shared_ptr<const std::string> spec;  // Serialized JobSpec; not null.
  JobNeeds needs;

  JobState state = JobState::kQueued;
  std::string reason;         // For people: what it waits for, why it ended.
  std::string numeric_class;  // Fixed by the first generation; empty before.
  // Of the last generation; before the first as the spec says.
  std::optional<int> zero_stage;
  int64_t generation = 0;         // Last one begun; 0 before the first.
  std::vector<WorkerId> members;  // Of that generation, by rank; empty when the
                                  // job has none.
  int failure_count = 0;          // Since the last step that was new.

  // Whose the steps are, in order and without gaps, as rank 0 said when the
  // generation of the last row began; that row is the job's newest that
  // trained.
  std::vector<LedgerRow> ledger;

  // As known when last stored; the workers know better.
  int64_t committed_step_count = 0;  // Of the generation.
  int64_t best_step_count = 0;       // Most of any generation.
  int64_t max_steps = 0;             // Of the job; 0 until known.

  absl::Time create_time;
  std::optional<absl::Time> start_time;
  std::optional<absl::Time> end_time;
  friend bool operator==(const JobRecord&, const JobRecord&) = default;
};

// How the coordinator is in contact with a worker.
//
//              hello                stream broke
//   (none) ----------> attached <=================> suspect
//                          |          hello            |
//                          | silent for the lease      |
//                          v                           v
//                  cut off (its generation commits), else lost
//                     |  hello: attached
//                     |  no commit within the step bound: lost
enum class Contact {
  kAttached,
  kSuspect,
  kCutOff,
  kLost,
};

// A worker as people see it.
struct WorkerView {
  WorkerId id;
  WorkerIncarnation incarnation;
  Contact contact = Contact::kAttached;
  DeviceDescription device;
  std::string peer_address;
  WorkerStatus status;
  std::optional<GenerationKey> assigned;  // Where it has a place.
  std::string reason;
  absl::Time connect_time;
  absl::Time last_seen_time;
};

}  // namespace lockstep

#endif  // COORDINATOR_CORE_RECORDS_H_
