// The plan of a job: what lockstep/v1/plan.proto says, made from the spec.
#ifndef COMMON_JOB_PLAN_H_
#define COMMON_JOB_PLAN_H_

#include <optional>
#include <string>
#include <vector>

#include "common/memory_plan.h"
#include "common/model_config.h"
#include "lockstep/v1/job.pb.h"
#include "lockstep/v1/monitor_service.pb.h"
#include "lockstep/v1/plan.pb.h"

namespace lockstep {

// The model, where the spec says it: not with a folder whose `model.sizes` it
// does not have.  `spec` is resolved, here and below.
std::optional<ModelConfig> ModelOf(const v1::JobSpec& spec);

// The memory that `parallel.min_workers` of the workers have, or all of those
// that could run the job if they are fewer, and the most threads of these: of
// the numeric class that has the most memory.  Rates are the least of
// `parallel.max_workers` of them; collectives' is that of shared memory if
// these have one host's name.  Lost ones do not count.  Without any nothing is
// known.
v1::PlannedWorker PlannedWorkerFor(const v1::JobSpec& spec,
                                   const std::vector<v1::Worker>& workers);

// `worker` may have all that is not known left out.  Of many numbers of workers
// a few have rows.
v1::JobPlan PlanJob(const v1::JobSpec& spec, const ModelConfig& model,
                    const v1::PlannedWorker& worker);

// What each of `parallel.min_workers` needs; none where ModelOf() has none.
std::optional<MemoryNeeds> MemoryNeedsOf(const v1::JobSpec& spec);

// As a table for people, with what it means; lines end in "\n".
std::string PlanText(const v1::JobPlan& plan);

}  // namespace lockstep

#endif  // COMMON_JOB_PLAN_H_
