#include "coordinator/service/views.h"

#include "absl/strings/str_cat.h"
#include "common/session_proto.h"
#include "common/time_proto.h"
#include "coordinator/service/names.h"

namespace lockstep {
namespace {

v1::Worker::State StateOf(const WorkerView& view) {
  switch (view.contact) {
    case Contact::kAttached:
      if (view.assigned.has_value()) return v1::Worker::BUSY;
      return view.status.trainer_ready ? v1::Worker::IDLE
                                       : v1::Worker::STARTING;
    case Contact::kSuspect:
      return v1::Worker::SUSPECT;
    case Contact::kCutOff:
      return v1::Worker::CUT_OFF;
    case Contact::kLost:
      return v1::Worker::LOST;
  }
  return v1::Worker::STATE_UNSPECIFIED;
}

std::string ReasonOf(const WorkerView& view) {
  std::string reason = view.reason;
  auto add = [&](absl::string_view text) {
    absl::StrAppend(&reason, reason.empty() ? "" : "; ", text);
  };
  if (view.status.held.has_value() && !view.status.held->detail.empty()) {
    add(view.status.held->detail);
  }
  if (!view.status.trainer_ready && !view.status.last_trainer_death.empty()) {
    add(absl::StrCat("its last trainer died: ",
                     view.status.last_trainer_death));
  }
  return PeopleText(reason);
}

}  // namespace

void FillJob(const JobRecord& record, v1::Job& job) {
  job.set_name(JobName(record.id));
  job.set_state(static_cast<v1::Job::State>(record.state));
  job.set_state_reason(PeopleText(record.reason));
  *job.mutable_create_time() = TimeToProto(record.create_time);
  job.clear_start_time();
  if (record.start_time.has_value()) {
    *job.mutable_start_time() = TimeToProto(*record.start_time);
  }
  job.clear_end_time();
  if (record.end_time.has_value()) {
    *job.mutable_end_time() = TimeToProto(*record.end_time);
  }
  job.clear_ledger();
  for (const LedgerRow& row : record.ledger) *job.add_ledger() = ToProto(row);
  job.set_generation(record.generation);
  job.clear_workers();
  for (const WorkerId& member : record.members) {
    job.add_workers(WorkerName(member));
  }
  job.set_numeric_class(record.numeric_class);
  if (record.zero_stage.has_value()) {
    job.mutable_spec()->mutable_parallel()->set_zero_stage(*record.zero_stage);
  }
  job.set_failure_count(record.failure_count);
  job.set_spec_digest(record.spec_digest);
}

v1::Worker WorkerToProto(const WorkerView& view, std::optional<int> rank) {
  v1::Worker worker;
  worker.set_name(WorkerName(view.id));
  worker.set_state(StateOf(view));
  worker.set_state_reason(ReasonOf(view));
  // A record that a restart made of what the store knows has no incarnation.
  if (view.incarnation.value != 0) {
    worker.set_phase(view.status.held.has_value()
                         ? ToProto(view.status.held->phase)
                         : v1::Worker::FREE);
    *worker.mutable_device() = ToProto(view.device);
  }
  if (view.assigned.has_value()) {
    worker.set_job(JobName(view.assigned->job));
    worker.set_generation(view.assigned->generation);
    worker.set_rank(rank.value_or(0));
    const auto& held = view.status.held;
    if (held.has_value() && held->key == *view.assigned) {
      worker.set_collectives(ToProto(held->collectives));
    }
  }
  worker.set_incarnation(view.incarnation.value);
  worker.set_peer_address(view.peer_address);
  *worker.mutable_connect_time() = TimeToProto(view.connect_time);
  *worker.mutable_last_seen_time() = TimeToProto(view.last_seen_time);
  worker.set_trainer_death_count(view.status.trainer_death_count);
  return worker;
}

}  // namespace lockstep
