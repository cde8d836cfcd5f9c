// Which job gets which workers.
//
// A job never mixes numeric classes of workers, and keeps to the one of its
// first generation; one that computes in bfloat16 gets workers that can, and
// all get workers with the memory that they need.  A job that names no ZeRO
// stage gets the lowest at which min_workers hold it, in each generation anew:
// with more it needs less.  Jobs are looked at by priority, then age.  One that
// can be placed is: all of min_workers or none, then up to max_workers.  One
// that cannot, although enough workers of a class are present, waits for busy
// ones: no job behind it gets workers of that class, or it might wait for ever.
// One for which too few workers are present at all holds up nobody.
//
// Who is silent is present until it is lost: a stream that breaks for a moment
// lets nobody overtake.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/bytes_text.h"
#include "common/check.h"
#include "coordinator/core/coordinator.h"
#include "coordinator/core/phrases.h"

namespace lockstep {

bool Coordinator::IsPlaceable(Moment now, const Worker& worker) const {
  return worker.view.contact == Contact::kAttached &&
         worker.view.status.trainer_ready &&
         !worker.view.status.held.has_value() && worker.unacked.empty() &&
         worker.placeable_from <= now.steady;
}

bool Coordinator::BackoffHasEnded(Moment now) const {
  return std::any_of(workers_.begin(), workers_.end(), [&](const auto& entry) {
    const Instant end = entry.second.placeable_from;
    return placed_at_ < end && end <= now.steady;
  });
}

bool Coordinator::MembersHaveLetGo(const Job& job) const {
  const GenerationKey key = {job.record.id, job.record.generation};
  return std::none_of(job.record.members.begin(), job.record.members.end(),
                      [&](const WorkerId& member) {
                        auto it = workers_.find(member);
                        return it != workers_.end() &&
                               it->second.view.assigned == key;
                      });
}

Coordinator::WorkerClasses Coordinator::ClassifyWorkers(Moment now) {
  WorkerClasses classes;
  for (auto& [id, worker] : workers_) {
    if (worker.view.contact == Contact::kLost) continue;
    WorkerClass& its_class = classes[worker.view.device.numeric_class];
    its_class.present.push_back(&worker);
    its_class.has_bfloat16 |= worker.view.device.has_bfloat16;
    if (IsPlaceable(now, worker)) its_class.free.push_back(&worker);
  }
  return classes;
}

void Coordinator::DescribeOthers(Moment now, WorkerClasses& classes) const {
  for (const auto& [id, worker] : workers_) {
    const WorkerView& view = worker.view;
    if (view.contact == Contact::kLost || IsPlaceable(now, worker)) continue;
    const std::string why =
        view.assigned.has_value()
            ? absl::StrCat("jobs/", view.assigned->job.value)
        : view.contact != Contact::kAttached ? view.reason
        : !view.status.trainer_ready         ? "starting"
        : worker.placeable_from > now.steady ? "held back after a failure"
                                             : "letting go";
    classes[view.device.numeric_class].others.push_back(
        absl::StrCat(id.value, " (", why, ")"));
  }
}

std::vector<Coordinator::WorkerClass*> Coordinator::ClassesFor(
    const JobNeeds& needs, const std::string& numeric_class,
    WorkerClasses& classes) {
  std::vector<WorkerClass*> suitable;
  for (auto& [name, its_class] : classes) {
    if (needs.bfloat16 && !its_class.has_bfloat16) continue;
    if (numeric_class.empty() || numeric_class == name) {
      suitable.push_back(&its_class);
    }
  }
  return suitable;
}

Coordinator::Holders Coordinator::HoldersAmong(
    const JobNeeds& needs, const std::vector<Worker*>& workers) {
  Holders most;
  const int first = needs.zero_stage.value_or(0);
  const int last = needs.zero_stage.value_or(kZeroStageMax);
  for (int stage = first; stage <= last; ++stage) {
    Holders holders{.zero_stage = stage};
    for (Worker* worker : workers) {
      const DeviceDescription& device = worker->view.device;
      // Of a worker that has yet to reattach nothing is known.
      if (!needs.memory.has_value() || device.memory_bytes <= 0 ||
          needs.memory->Of(stage, std::max(device.thread_count, 1)) <=
              device.memory_bytes) {
        holders.workers.push_back(worker);
      }
    }
    if (static_cast<int>(holders.workers.size()) >= needs.min_workers) {
      return holders;
    }
    if (stage == first || holders.workers.size() > most.workers.size()) {
      most = std::move(holders);
    }
  }
  return most;
}

absl::Status Coordinator::CheckMemory(Moment now,
                                      const Submission& submission) {
  const JobNeeds& needs = submission.needs;
  WorkerClasses classes = ClassifyWorkers(now);
  bool enough = false;
  for (const WorkerClass* c : ClassesFor(needs, "", classes)) {
    if (!HoldersAmong(needs, c->present).workers.empty()) {
      return absl::OkStatus();
    }
    enough |= static_cast<int>(c->present.size()) >= needs.min_workers;
  }
  if (!enough) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the job does not fit the memory of any worker that is connected",
      submission.plan.empty() ? "" : ":\n", submission.plan));
}

bool Coordinator::HasGivenUp(const Job& job) {
  return !job.generation.has_value() &&
         job.record.failure_count > job.record.needs.failures_max;
}

void Coordinator::GiveUpJobs(Moment now, Effects& effects) {
  std::vector<JobId> given_up;
  for (const auto& [key, id] : queue_) {
    const Job& job = jobs_.at(id);
    if (HasGivenUp(job) && MembersHaveLetGo(job)) given_up.push_back(id);
  }
  for (const JobId& id : given_up) {
    Job& job = jobs_.at(id);
    FinishJob(now, job, JobState::kFailed,
              absl::StrCat("gave up after ",
                           CountOf(job.record.failure_count, "failure"),
                           " without a new step; the last: ", job.last_failure),
              effects);
  }
}

void Coordinator::PlaceJobs(Moment now, Effects& effects) {
  GiveUpJobs(now, effects);
  WorkerClasses classes = ClassifyWorkers(now);
  for (const auto& [key, id] : queue_) {
    Job& job = jobs_.at(id);
    if (job.generation.has_value() || HasGivenUp(job)) continue;
    const JobNeeds& needs = job.record.needs;
    const std::vector<WorkerClass*> suitable =
        ClassesFor(needs, job.record.numeric_class, classes);
    const auto holders_among = [&](const std::vector<Worker*>& workers) {
      return HoldersAmong(needs, workers);
    };
    if (MembersHaveLetGo(job)) {
      // The class that offers most; of equals the first by name.
      WorkerClass* best = nullptr;
      Holders chosen;
      for (WorkerClass* c : suitable) {
        if (c->awaited_by != nullptr) continue;
        Holders holders = holders_among(c->free);
        if (static_cast<int>(holders.workers.size()) >= needs.min_workers &&
            holders.workers.size() > chosen.workers.size()) {
          best = c;
          chosen = std::move(holders);
        }
      }
      if (best != nullptr) {
        chosen.workers.resize(
            std::min({static_cast<int>(chosen.workers.size()),
                      needs.max_workers, needs.micro_batches}));
        BeginGeneration(now, job, chosen.workers, chosen.zero_stage, effects);
        std::erase_if(best->free, [&](const Worker* worker) {
          return std::count(chosen.workers.begin(), chosen.workers.end(),
                            worker) > 0;
        });
        continue;
      }
    }
    for (WorkerClass* c : suitable) {
      if (c->awaited_by == nullptr &&
          static_cast<int>(holders_among(c->present).workers.size()) >=
              needs.min_workers) {
        c->awaited_by = &id;
      }
    }
  }

  // Said when all is placed, so that it is true.
  bool described = false;
  for (const auto& [key, id] : queue_) {
    Job& job = jobs_.at(id);
    if (job.generation.has_value()) continue;
    if (!described) DescribeOthers(now, classes);
    described = true;
    SetReason(job, WaitingReason(id, job, classes));
  }
}

std::string Coordinator::WaitingReason(const JobId& id, const Job& job,
                                       WorkerClasses& classes) const {
  const JobNeeds& needs = job.record.needs;
  std::string reason = job.last_failure;
  if (!reason.empty()) reason += "; ";
  if (!MembersHaveLetGo(job)) {
    return absl::StrCat(reason, "waiting for the workers of generation ",
                        job.record.generation, " to let go");
  }
  const WorkerClass none;
  const WorkerClass* most = &none;
  Holders holders;
  bool too_small = false;
  const JobId* ahead = nullptr;
  bool enough = false;
  bool is_first = false;
  for (const WorkerClass* c :
       ClassesFor(needs, job.record.numeric_class, classes)) {
    Holders present = HoldersAmong(needs, c->present);
    too_small |= present.workers.size() < c->present.size();
    const auto count = static_cast<int>(present.workers.size());
    if (most == &none || present.workers.size() > holders.workers.size()) {
      most = c;
      holders = std::move(present);
    }
    if (count < needs.min_workers) continue;
    enough = true;
    if (c->awaited_by == &id) is_first = true;
    if (ahead == nullptr) ahead = c->awaited_by;
  }
  if (enough && !is_first && ahead != nullptr) {
    return absl::StrCat(reason, "waiting behind jobs/", ahead->value);
  }
  absl::StrAppend(&reason, "needs ", CountOf(needs.min_workers, "worker"));
  if (!job.record.numeric_class.empty()) {
    absl::StrAppend(&reason, " of class ", job.record.numeric_class);
  } else if (classes.size() > 1) {
    absl::StrAppend(&reason, " of one class");
  }
  if (needs.bfloat16) absl::StrAppend(&reason, " with bfloat16 (AVX-512)");
  if (too_small) {
    absl::StrAppend(&reason, " with ",
                    BytesTextAtLeast(needs.memory->Of(holders.zero_stage,
                                                      /*thread_count=*/1)),
                    " of memory (ZeRO stage ", holders.zero_stage, ")");
  }
  const size_t present = holders.workers.size();
  absl::StrAppend(&reason, ": ", present, present == 1 ? " is" : " are",
                  " present");
  if (present == 0) return reason;
  const size_t free = HoldersAmong(needs, most->free).workers.size();
  absl::StrAppend(&reason, ", ", free, " free");
  if (!most->others.empty()) {
    absl::StrAppend(&reason, "; ", JoinNames(most->others));
  }
  return reason;
}

void Coordinator::BeginGeneration(Moment now, Job& job,
                                  const std::vector<Worker*>& chosen,
                                  int zero_stage, Effects& effects) {
  JobRecord& record = job.record;
  LS_CHECK(!job.generation.has_value() && !chosen.empty());
  record.state = JobState::kForming;
  ++record.generation;
  record.committed_step_count = 0;
  record.numeric_class = chosen.front()->view.device.numeric_class;
  record.zero_stage = zero_stage;
  record.members.clear();
  for (const Worker* worker : chosen) record.members.push_back(worker->view.id);
  job.generation = Generation();
  job.generation->ranks.resize(chosen.size());
  job.generation->deadline = now.steady + options_.forming_timeout;
  SetReason(job, FormingReason(job));
  Persist(job, effects);

  const GenerationKey key = {record.id, record.generation};
  for (size_t rank = 0; rank < chosen.size(); ++rank) {
    // It would hold it, or have commands of it under way.
    LS_CHECK(!chosen[rank]->view.assigned.has_value());
    chosen[rank]->view.assigned = key;
    dirty_workers_.insert(chosen[rank]->view.id);
    Send(*chosen[rank],
         Prepare{key, static_cast<int>(rank), record.members, record.spec,
                 zero_stage},
         effects);
  }
}

}  // namespace lockstep
