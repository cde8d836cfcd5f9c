// Which job gets which workers.
//
// Jobs are looked at by priority, then age.  One that can be placed is: all of
// min_workers or none, then up to max_workers.  One that cannot, although
// enough workers of its kind are present, waits for busy ones: no job behind it
// is placed, or it might wait for ever.  One for which too few workers are
// present at all holds up nobody.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "coordinator/core/coordinator.h"
#include "coordinator/core/phrases.h"

namespace lockstep {

bool Coordinator::IsPlaceable(Moment now, const Worker& worker) const {
  return worker.view.contact == Contact::kAttached &&
         worker.view.status.trainer_ready &&
         !worker.view.status.held.has_value() &&
         !worker.view.assigned.has_value() && worker.unacked.empty() &&
         worker.placeable_from <= now.steady;
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

void Coordinator::PlaceJobs(Moment now, Effects& effects) {
  // By numeric class, since a job never mixes them.
  std::map<std::string, std::vector<Worker*>> placeable;
  std::map<std::string, int> present;
  for (auto& [id, worker] : workers_) {
    if (worker.view.contact != Contact::kAttached) continue;
    const std::string& numeric_class = worker.view.device.numeric_class;
    ++present[numeric_class];
    if (IsPlaceable(now, worker)) placeable[numeric_class].push_back(&worker);
  }

  const JobId* first_waiting = nullptr;
  for (const auto& [key, id] : queue_) {
    Job& job = jobs_.at(id);
    const JobNeeds& needs = job.record.needs;
    if (job.generation.has_value()) continue;
    if (!MembersHaveLetGo(job)) {
      SetReason(job, absl::StrCat(job.last_failure,
                                  job.last_failure.empty() ? "" : "; ",
                                  "waiting for the workers of generation ",
                                  job.record.generation, " to let go"));
      // Its own workers will be free in a moment: others must not take them.
      if (first_waiting == nullptr) first_waiting = &id;
      continue;
    }
    if (first_waiting != nullptr) {
      SetReason(job,
                absl::StrCat("waiting behind jobs/", first_waiting->value));
      continue;
    }

    std::string numeric_class = job.record.numeric_class;
    if (numeric_class.empty()) {
      // The class that offers most; of equals the first by name.
      size_t most = 0;
      for (const auto& [name, workers] : placeable) {
        if (workers.size() <= most) continue;
        most = workers.size();
        numeric_class = name;
      }
    }
    std::vector<Worker*>& free = placeable[numeric_class];
    if (static_cast<int>(free.size()) >= needs.min_workers) {
      const int take = std::min({static_cast<int>(free.size()),
                                 needs.max_workers, needs.micro_batches});
      BeginGeneration(now, job, {free.begin(), free.begin() + take}, effects);
      free.erase(free.begin(), free.begin() + take);
      continue;
    }

    int most_present = 0;
    for (const auto& [name, count] : present) {
      if (job.record.numeric_class.empty() ||
          name == job.record.numeric_class) {
        most_present = std::max(most_present, count);
      }
    }
    SetReason(job,
              WaitingReason(job, static_cast<int>(free.size()), most_present));
    if (most_present >= needs.min_workers) first_waiting = &id;
  }
}

std::string Coordinator::WaitingReason(const Job& job, int placeable,
                                       int present) const {
  const JobNeeds& needs = job.record.needs;
  std::string reason = job.last_failure;
  absl::StrAppend(&reason, reason.empty() ? "" : "; ", "needs ",
                  CountOf(needs.min_workers, "worker"));
  if (!job.record.numeric_class.empty()) {
    absl::StrAppend(&reason, " of class ", job.record.numeric_class);
  }
  absl::StrAppend(&reason, ": ", present, present == 1 ? " is" : " are",
                  " present");
  if (present == 0) return reason;
  absl::StrAppend(&reason, ", ", placeable, " free");

  std::vector<std::string> others;
  for (const auto& [id, worker] : workers_) {
    if (worker.view.contact != Contact::kAttached) continue;
    if (!job.record.numeric_class.empty() &&
        worker.view.device.numeric_class != job.record.numeric_class) {
      continue;
    }
    if (worker.view.assigned.has_value()) {
      others.push_back(absl::StrCat(id.value, " (jobs/",
                                    worker.view.assigned->job.value, ")"));
    } else if (!worker.view.status.trainer_ready) {
      others.push_back(absl::StrCat(id.value, " (starting)"));
    } else if (worker.placeable_from > last_now_) {
      others.push_back(absl::StrCat(id.value, " (held back after a failure)"));
    }
  }
  if (!others.empty()) absl::StrAppend(&reason, "; ", JoinNames(others));
  return reason;
}

void Coordinator::BeginGeneration(Moment now, Job& job,
                                  const std::vector<Worker*>& chosen,
                                  Effects& effects) {
  JobRecord& record = job.record;
  LS_CHECK(!job.generation.has_value() && !chosen.empty());
  record.state = JobState::kForming;
  ++record.generation;
  record.committed_step_count = 0;
  record.numeric_class = chosen.front()->view.device.numeric_class;
  record.members.clear();
  for (const Worker* worker : chosen) record.members.push_back(worker->view.id);
  job.last_failure.clear();
  job.generation.emplace();
  job.generation->ranks.resize(chosen.size());
  job.generation->deadline = now.steady + options_.forming_timeout;
  SetReason(job, FormingReason(job));
  Persist(job, effects);

  const GenerationKey key = {record.id, record.generation};
  for (size_t rank = 0; rank < chosen.size(); ++rank) {
    chosen[rank]->view.assigned = key;
    dirty_workers_.insert(chosen[rank]->view.id);
    Send(*chosen[rank],
         Prepare{key, static_cast<int>(rank), record.members, record.spec},
         effects);
  }
}

}  // namespace lockstep
