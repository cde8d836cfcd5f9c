// Decides everything about jobs, workers and generations.
//
// Pure: no I/O, locks, threads, clock or randomness.  The caller passes the
// moment in, and carries out the effects it gets back, in order; what is to be
// stored is durable before any later effect is carried out, so that nothing is
// promised that a crash could take back.
//
// A worker's state comes as levels (its whole status, every time), so that a
// lost message is mended by the next.  Commands to it form a numbered log, kept
// until acknowledged and sent again on every new stream; of a generation that
// is over by then, a Release is sent instead.
//
// A generation's life, as its members report it:
//
//   Prepare to all -> all JOINED -> Start to all -> all TRAINING (RUNNING)
//     -> all OUTPUT_READY -> CommitOutput to rank 0 -> FINISHED (COMPLETED)
//     -> Release to all
//
// At any point a member's failure or loss ends it: Release to all; when all
// have let go, the job is placed again with the next generation number.  A
// failure that is the job's own ends the job instead, and so do too many.
//
// A worker is placed only while it is attached, has a trainer ready, and holds
// nothing; so two generations never share a trainer.
//
// Every call first expires what is overdue, so that the outcome depends on when
// events happen and not on how often Tick() is called.
#ifndef COORDINATOR_CORE_COORDINATOR_H_
#define COORDINATOR_CORE_COORDINATOR_H_

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/session.h"
#include "coordinator/core/effects.h"
#include "coordinator/core/records.h"

namespace lockstep {

struct CoordinatorOptions {
  // Which start this is.  Must be durable, and larger than any before.
  CoordinatorIncarnation incarnation;

  // A worker silent for this long may be replaced.  Positive.  Workers' beat
  // interval is a quarter of it.
  absl::Duration lease = absl::Seconds(3);

  // How long a generation may take from its beginning until every member is
  // prepared, and again until every member trains.  Positive.
  absl::Duration forming_timeout = absl::Minutes(10);

  // A silent worker is still believed alive for so long after a step that its
  // generation committed: ten times the longest time between two commits that
  // was seen of the generation, at least the lease, and at most this.
  // Positive.
  absl::Duration step_bound = absl::Minutes(1);

  // How long the members of running generations have to come back after this
  // coordinator started.  Positive.
  absl::Duration reattach_window = absl::Seconds(6);

  // A worker that failed a generation by its own fault is not placed for this
  // long, doubling with each such failure in a row, up to the maximum.
  // Positive.
  absl::Duration worker_backoff = absl::Seconds(1);
  absl::Duration worker_backoff_max = absl::Minutes(1);

  // A lost worker is shown for this long.  Positive.
  absl::Duration lost_worker_retention = absl::Hours(1);

  // At least 1 each.
  int worker_count_max = 4096;  // Lost ones make room for new ones.
  int unfinished_job_max = 10'000;
  int finished_job_max = 10'000;  // Those beyond it that ended first are
                                  // forgotten.
};

class Coordinator {
 public:
  struct Submission {
    JobId id;  // Must be new.
    std::string request_id;
    std::string spec_digest;  // Same digest, same spec.
    std::shared_ptr<const std::string> spec;
    JobNeeds needs;
    std::string plan;  // For people, should it not fit the workers.
  };

  // `stored` is what PersistJob stored before this start, in any order.  Adds
  // the effects that starting has; call once the store is open.
  //
  // Errors:
  //   InvalidArgument: an option is out of range.
  static absl::StatusOr<Coordinator> Create(const CoordinatorOptions& options,
                                            Moment now,
                                            std::vector<JobRecord> stored,
                                            Effects& effects);

  // Queues a job and returns its id: for a request_id seen before, the id of
  // then.
  //
  // Errors:
  //   AlreadyExists: the request_id was used with another spec.
  //   FailedPrecondition: an unfinished job has this output directory; or so
  //     many workers as it needs are present, and none has the memory.
  //   ResourceExhausted: too many unfinished jobs.
  absl::StatusOr<JobId> SubmitJob(Moment now, Submission submission,
                                  Effects& effects);

  // Errors:
  //   NotFound: no such job.
  //   FailedPrecondition: it completed or failed before.
  absl::Status CancelJob(Moment now, const JobId& job,
                         const std::string& reason, Effects& effects);

  // A worker spoke first on a new stream.  `session` is new.
  //
  // An error means that the stream must be ended with it; the core has then
  // forgotten the session:
  //   AlreadyExists: a live worker has this name.
  //   Aborted: this incarnation has a newer stream.
  //   FailedPrecondition: a newer incarnation of this worker has registered, or
  //     it has met a newer coordinator.
  //   InvalidArgument: it breaks a rule of the protocol.
  //   ResourceExhausted: too many workers.
  absl::Status OnHello(Moment now, SessionId session, const Hello& hello,
                       const std::string& peer_address, Effects& effects);

  // A worker's status; renews its lease.  Ignored when the session is not
  // current: it was replaced, and its stream is being closed.
  void OnStatus(Moment now, SessionId session, const WorkerStatus& status,
                Effects& effects);

  // A worker's rank has committed steps up to `committed_step_count`; renews
  // its lease.  Likewise.
  void OnStepsCommitted(Moment now, SessionId session, const GenerationKey& key,
                        int64_t committed_step_count, Effects& effects);

  // The stream ended.  `leaving`: the worker ended it on purpose, and is gone.
  void OnSessionClosed(Moment now, SessionId session, bool leaving,
                       Effects& effects);

  // The caller was not running for a while (its process was stopped, its
  // machine suspended): that nothing was heard of the workers since says
  // nothing.  Their leases begin again.  Call before anything else of `now`.
  void NoteStall(Moment now);

  // Expires what is overdue.  Call at or soon after NextDeadline().
  void Tick(Moment now, Effects& effects);

  // When Tick() next has work; an infinite instant if never.
  Instant NextDeadline() const;

  const CoordinatorOptions& options() const { return options_; }

  // For the shell's checks and for tests.
  const JobRecord* FindJob(const JobId& job) const;
  std::vector<JobId> JobIds() const;
  // Whether `session` speaks for `key`'s member, so that its step reports are
  // to be believed.
  std::optional<int> RankOf(SessionId session, const GenerationKey& key) const;

 private:
  struct Worker {
    WorkerView view;
    SessionId session;       // 0 when no stream is open.
    int64_t stream = 0;      // The incarnation's newest.
    Instant last_seen;       // For evidence of life; see ExpireWorker.
    Instant lease_end;       // When silence has consequences next.
    Instant placeable_from;  // Back-off after failures.
    int failures_in_a_row = 0;
    std::optional<GenerationKey> held_back_for;  // Last failed by its fault.
    int64_t last_sequence = 0;                   // Of the command log.
    std::deque<Command> unacked;                 // In order of sequence.
  };

  // What is known of a job's current generation; gone with the coordinator.
  struct Generation {
    struct Rank {
      std::optional<HeldGeneration> held;  // As last reported.
      bool start_sent = false;
    };
    std::vector<Rank> ranks;
    Instant deadline;                    // Of forming.
    bool commit_sent = false;            // CommitOutput was sent.
    std::optional<Instant> last_commit;  // Reported to this coordinator.
    absl::Duration longest_gap;          // Between two of these; 0 before.
  };

  // Who has not come as far in forming as it must before the others go on.
  struct Behind {
    bool in_connecting = false;  // Else in preparing.
    std::vector<size_t> ranks;
  };

  struct Job {
    JobRecord record;
    std::optional<Generation> generation;  // While FORMING or RUNNING.
    // While RECOVERING: why, and whether a worker's own fault was found.  Else
    // it is what another worker saw of it.
    std::string last_failure;
    bool culprit_is_known = false;
  };

  explicit Coordinator(const CoordinatorOptions& options) : options_(options) {}

  void Load(Moment now, std::vector<JobRecord> stored);

  // What every call begins and ends with.
  void Begin(Moment now, Effects& effects);
  void End(Moment now, Effects& effects);

  // How long after a commit the next one is awaited.
  absl::Duration StepBound(const Generation& generation) const;
  void ExpireWorker(Moment now, Worker& worker, Effects& effects);
  void NoteAlive(Moment now, Worker& worker);  // Renews its lease.
  // False if no worker is lost.
  bool ForgetALostWorker(Effects& effects);
  void Forget(Worker& worker, Effects& effects);
  void ExpireForming(Moment now, Job& job, Effects& effects);

  // Acts on what a worker holds and on what it should hold.
  void Reconcile(Moment now, Worker& worker, Effects& effects);
  void OnMemberReport(Moment now, Job& job, Worker& worker, Effects& effects);
  void AdvanceForming(Moment now, Job& job, Effects& effects);
  void AdvanceRunning(Job& job, Effects& effects);
  void NoteCommit(Moment now, Job& job, int64_t committed_step_count);
  // What rank 0, which trains, says of the steps before its generation's.
  static void NoteLedger(Job& job, const HeldGeneration& held);

  // Ends the job's generation: the job recovers, or fails when the failure is
  // its own.
  void FailGeneration(Moment now, Job& job, Worker& culprit,
                      const Failure& failure, Effects& effects);
  void FinishJob(Moment now, Job& job, JobState state, std::string reason,
                 Effects& effects);
  // The job's generation is over.
  void ReleaseMembers(Moment now, Job& job, const std::string& reason,
                      Effects& effects);
  // Once for a generation that failed by the worker's fault.
  void HoldBack(Moment now, Worker& worker, const GenerationKey& key);

  // The worker is gone: nothing it held is believed to go on.
  void LoseWorker(Moment now, Worker& worker, const std::string& why,
                  Effects& effects);
  // It has no place any more; if its generation is active, that fails.
  void LosePlace(Moment now, Worker& worker, const std::string& why,
                 Effects& effects);
  // A generation that others saw end ended by this worker's fault, unless a
  // culprit is known.
  void Blame(Job& job, const Worker& worker, const std::string& why);

  // The workers of one numeric class, for one pass of PlaceJobs().
  struct WorkerClass {
    std::vector<Worker*> free;     // Could be placed.
    std::vector<Worker*> present;  // Not lost: all that may become free.
    bool has_bfloat16 = false;
    // Who of those present is not free, and why.
    std::vector<std::string> others;
    // The first job in the queue that waits for these; those behind it must
    // not take them.
    const JobId* awaited_by = nullptr;
  };
  using WorkerClasses = std::map<std::string, WorkerClass>;

  void PlaceJobs(Moment now, Effects& effects);
  // Whether it has failed too often.  It fails once all members of its last
  // generation have let go: only then is known what is to be known of why.
  static bool HasGivenUp(const Job& job);
  void GiveUpJobs(Moment now, Effects& effects);
  bool BackoffHasEnded(Moment now) const;  // Since jobs were last placed.
  WorkerClasses ClassifyWorkers(Moment now);
  void DescribeOthers(Moment now, WorkerClasses& classes) const;
  // Which workers hold a job's memory, at which ZeRO stage.
  struct Holders {
    int zero_stage = 0;
    std::vector<Worker*> workers;
  };
  // At the lowest stage at which these are at least min_workers; if there is
  // none, at that at which they are the most.
  static Holders HoldersAmong(const JobNeeds& needs,
                              const std::vector<Worker*>& workers);
  // FailedPrecondition if no worker holds it, although enough are present.
  absl::Status CheckMemory(Moment now, const Submission& submission);

  // Those that the job may run on.
  static std::vector<WorkerClass*> ClassesFor(const JobNeeds& needs,
                                              const std::string& numeric_class,
                                              WorkerClasses& classes);
  std::string WaitingReason(const JobId& id, const Job& job,
                            WorkerClasses& classes) const;
  void BeginGeneration(Moment now, Job& job, const std::vector<Worker*>& chosen,
                       int zero_stage, Effects& effects);
  bool MembersHaveLetGo(const Job& job) const;
  bool IsPlaceable(Moment now, const Worker& worker) const;
  static Behind WhoIsBehind(const Generation& generation);
  static std::string FormingReason(const Job& job);
  void ForgetOldJobs(Effects& effects);

  void Send(Worker& worker, CommandBody body, Effects& effects);
  void CloseSessionOf(Worker& worker, absl::Status status, Effects& effects);
  void SetReason(Job& job, std::string reason);
  void Persist(const Job& job, Effects& effects);

  // The job whose current generation, active or just ended, this is; else null.
  Job* FindByKey(const GenerationKey& key);
  bool IsActive(const GenerationKey& key);  // Forming or running.
  Worker* FindBySession(SessionId session);

  CoordinatorOptions options_;
  Instant last_now_;
  int64_t last_order_ = 0;
  // Ordered, so that effects do not depend on hashing.
  std::map<JobId, Job> jobs_;
  std::map<std::string, JobId> job_by_request_;
  // Unfinished jobs, in the order in which they are placed: -priority, order.
  std::map<std::pair<int, int64_t>, JobId> queue_;
  // Finished jobs; who ended first comes first.
  std::deque<JobId> finished_;
  std::map<WorkerId, Worker> workers_;
  std::map<SessionId, WorkerId> worker_by_session_;
  // Whether something changed that placing jobs, or the reasons of those that
  // wait, depend on; when that was last looked at.
  bool placement_stale_ = true;
  Instant placed_at_;
  // Changed by the current call; published at its end.
  std::set<JobId> dirty_jobs_;
  std::set<WorkerId> dirty_workers_;
};

}  // namespace lockstep

#endif  // COORDINATOR_CORE_COORDINATOR_H_
