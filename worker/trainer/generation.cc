#include "worker/trainer/generation.h"

#include <sys/resource.h>

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/bytes_text.h"
#include "common/check.h"
#include "common/job_plan.h"
#include "common/log.h"
#include "common/memory_plan.h"
#include "common/spec.h"
#include "common/status.h"
#include "common/time_proto.h"
#include "worker/comm/loopback_communicator.h"
#include "worker/trainer/failure.h"

namespace lockstep {
namespace {

absl::Status Released() {
  return absl::CancelledError("the generation was released");
}

// Of this process, so far.
int64_t PeakResidentBytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} << 10;
}

double Ms(absl::Duration d) { return absl::ToDoubleMilliseconds(d); }

}  // namespace

Generation::Generation(Environment environment, Prepare prepare)
    : environment_(std::move(environment)), prepare_(std::move(prepare)) {
  held_.key = prepare_.key;
  held_.rank = prepare_.rank;
  thread_ = std::thread([this] { Run(); });
}

Generation::~Generation() {
  Abort();
  thread_.join();
}

void Generation::OnStart(Start start) {
  MutexLock lock(&mutex_);
  if (start.key != prepare_.key || start_.has_value()) return;
  start_ = std::move(start);
  changed_.SignalAll();
}

void Generation::OnCommitOutput() {
  MutexLock lock(&mutex_);
  commit_output_ = true;
  changed_.SignalAll();
}

void Generation::Abort() {
  MutexLock lock(&mutex_);
  aborted_ = true;
  changed_.SignalAll();
  if (abortable_listener_ != nullptr) abortable_listener_->Abort(Released());
  if (abortable_training_ != nullptr) abortable_training_->Abort(Released());
}

void Generation::Tell(Phase phase) {
  held_.phase = phase;
  environment_.on_held(held_);
}

void Generation::Run() {
  const absl::Status status = [&]() -> absl::Status {
    try {
      return RunToTheEnd();
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError(
          absl::StrCat("not enough memory while ", PhaseName(held_.phase)));
    }
  }();
  if (status.ok()) return;
  {
    MutexLock lock(&mutex_);
    if (aborted_) return;
  }
  // The others must not wait for this rank.
  if (training_ != nullptr) training_->Abort(status);
  if (listener_ != nullptr) listener_->Abort(status);
  Failure failure;
  failure.cause = CauseOf(status);
  failure.code = status.code();
  failure.message = std::string(status.message());
  failure.peer_rank = failed_peer_;
  if (training_ != nullptr && training_->failed_peer().has_value()) {
    failure.peer_rank = training_->failed_peer();
  }
  if (failure.cause != Failure::Cause::kPeer) failure.peer_rank.reset();
  held_.failure = std::move(failure);
  Tell(Phase::kFailed);
}

absl::Status Generation::RunToTheEnd() {
  Tell(Phase::kPreparing);
  RETURN_IF_ERROR(PrepareAll());
  if (output_ != nullptr && output_->already_committed()) {
    // An earlier generation was told to commit, did, and died before the
    // coordinator knew.
    held_.max_steps = job_->max_steps();
    held_.committed_step_count = job_->max_steps();
    Tell(Phase::kFinished);
    return absl::OkStatus();
  }
  Tell(Phase::kJoined);
  Start start;
  {
    MutexLock lock(&mutex_);
    while (!start_.has_value() && !aborted_) changed_.Wait(&mutex_);
    if (aborted_) return Released();
    start = *start_;
  }
  Tell(Phase::kConnecting);
  RETURN_IF_ERROR(RestoreAt(start.first_step));
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator, Connect(start));
  RETURN_IF_ERROR(MakeCheckpointer(start));
  RETURN_IF_ERROR(training_->Join(std::move(communicator), prepare_.workers,
                                  start.micro_batches, start.first_step));
  held_.addresses.clear();
  held_.nonce.clear();
  own_row_ = {.generation = held_.key.generation,
              .plan_version = start.plan_version,
              .first_step = start.first_step,
              .workers = prepare_.workers,
              .micro_batches = start.micro_batches};
  held_.committed_step_count = start.first_step;
  Tell(Phase::kTraining);
  RETURN_IF_ERROR(Train(start.first_step));
  return Finish();
}

absl::Status Generation::PrepareAll() {
  ASSIGN_OR_RETURN(job_, OpenedJob::Open(*prepare_.spec));
  held_.max_steps = job_->max_steps();
  if (prepare_.rank == 0) {
    absl::StatusOr<std::unique_ptr<OutputDirectory>> output =
        OutputDirectory::Claim(job_->spec().output_directory(), prepare_.key,
                               environment_.random);
    if (!output.ok()) {
      return CausedBy(Failure::Cause::kJob, output.status());
    }
    output_ = *std::move(output);
    if (output_->already_committed()) return absl::OkStatus();
    absl::StatusOr<std::unique_ptr<HuggingFaceWriter>> writer =
        HuggingFaceWriter::Create({
            .temporary_folder = output_->model_path(),
            .config = job_->model(),
            .dropout = job_->spec().numerics().dropout(),
            .source_folder = job_->source_folder(),
        });
    if (!writer.ok()) {
      return CausedBy(Failure::Cause::kJob,
                      Annotate(writer.status(), "output_directory"));
    }
    writer_ = *std::move(writer);
    held_.nonce = output_->nonce();
  }
  RETURN_IF_ERROR(CheckMemory());
  RETURN_IF_ERROR(FindCheckpoint());
  ASSIGN_OR_RETURN(
      training_,
      Training::Create(*job_, prepare_.rank, world(), *environment_.device,
                       *environment_.clock,
                       checkpoint_.has_value() ? &*checkpoint_ : nullptr,
                       environment_.on_progress));
  if (world() > 1) {
    ASSIGN_OR_RETURN(
        listener_,
        GroupListener::Listen(
            prepare_.rank, world(),
            {.tcp = {.host = environment_.listen_host,
                     .timeout = environment_.collective_timeout,
                     .session = absl::StrCat(prepare_.key.job.value, "/",
                                             prepare_.key.generation)},
             .collectives = environment_.collectives},
            *environment_.clock));
    held_.addresses = listener_->addresses();
  }
  MutexLock lock(&mutex_);
  if (aborted_) return Released();
  abortable_training_ = training_.get();
  abortable_listener_ = listener_.get();
  return absl::OkStatus();
}

// The coordinator gives a job to workers that hold it, but it does not always
// know how large the model is.
absl::Status Generation::CheckMemory() const {
  const v1::JobSpec& spec = job_->spec();
  const kernels::Device& device = *environment_.device;
  const MemoryPlan memory =
      PlanMemory(job_->model(), job_->layout(),
                 {.decoder = DecoderShapeOf(spec, device.thread_count()),
                  .bucket_bytes = spec.parallel().bucket_bytes(),
                  .zero_stage = spec.parallel().zero_stage(),
                  .rank = prepare_.rank,
                  .world = world(),
                  .checkpoints = SavesCheckpoints(spec)});
  const int64_t have = device.memory_bytes();
  if (have <= 0 || memory.peak_bytes() <= have) return absl::OkStatus();
  v1::JobSpec here = spec;
  // Whoever submitted the job may have left it to the coordinator, which could
  // not know.
  std::string also;
  if (!ModelOf(spec).has_value()) {
    here.mutable_parallel()->clear_zero_stage();
    also = ", or model.sizes, with which it would have been planned";
  }
  here.mutable_parallel()->set_min_workers(world());
  here.mutable_parallel()->set_max_workers(world());
  v1::PlannedWorker worker;
  worker.set_memory_bytes(have);
  worker.set_thread_count(device.thread_count());
  const v1::JobPlan plan = PlanJob(here, job_->model(), worker);
  const std::string advice =
      plan.fits() ? absl::StrCat("parallel.zero_stage: ", plan.zero_stage())
                  : absl::StrJoin(plan.advice(), ", or ");
  return CausedBy(
      Failure::Cause::kJob,
      absl::ResourceExhaustedError(absl::StrCat(
          "the job does not fit this worker: at ZeRO stage ",
          spec.parallel().zero_stage(), " on ", world(),
          world() == 1 ? " worker" : " workers", " it needs ",
          BytesTextAtLeast(memory.peak_bytes()), " of memory, and there are ",
          BytesText(have), "; what would make it fit: ", advice, also)));
}

std::string Generation::CheckpointsFolder() const {
  return absl::StrCat(job_->spec().output_directory(), "/checkpoints");
}

absl::Status Generation::aborted() {
  MutexLock lock(&mutex_);
  return aborted_ ? Released() : absl::OkStatus();
}

absl::Status Generation::FindCheckpoint() {
  const auto on_progress = [this] {
    environment_.on_progress();
    return aborted();
  };
  const auto on_passed_over = [this](const absl::Status& why) {
    LOG(WARNING) << "a checkpoint is passed over" << Field("job", held_.key.job)
                 << Field("reason", why.message());
    if (passed_over_.empty()) {
      passed_over_ = absl::StrCat("a checkpoint is passed over: ",
                                  std::string(why.message()));
    }
  };
  absl::StatusOr<std::optional<Checkpoint>> found = FindNewestCheckpoint(
      CheckpointsFolder(), {held_.key.job.value, job_->spec_digest()},
      /*verify=*/prepare_.rank == 0, on_progress, on_passed_over);
  if (!found.ok()) {
    if (prepare_.rank != 0) return aborted();  // Rank 0 says it.
    return CausedBy(absl::IsCancelled(found.status()) ? Failure::Cause::kWorker
                                                      : Failure::Cause::kJob,
                    found.status());
  }
  if (!found->has_value()) return absl::OkStatus();
  checkpoint_ = *std::move(found);
  if (prepare_.rank == 0) {
    held_.first_step = checkpoint_->info().step_count;
    held_.ledger = checkpoint_->info().ledger;
  }
  return absl::OkStatus();
}

absl::Status Generation::RestoreAt(int64_t first_step) {
  const int64_t have =
      checkpoint_.has_value() ? checkpoint_->info().step_count : 0;
  if (have == first_step) return absl::OkStatus();
  if (first_step == 0) {
    return absl::UnavailableError(absl::StrCat(
        "rank 0 begins at step 0, while ", checkpoint_->folder(), " is there"));
  }
  ASSIGN_OR_RETURN(Checkpoint checkpoint,
                   Checkpoint::Open(absl::StrCat(CheckpointsFolder(), "/",
                                                 CheckpointName(first_step))));
  RETURN_IF_ERROR(training_->Restore(checkpoint));
  checkpoint_ = std::move(checkpoint);
  return absl::OkStatus();
}

absl::Status Generation::MakeCheckpointer(const Start& start) {
  const v1::CheckpointSpec& spec = job_->spec().checkpoint();
  if (!SavesCheckpoints(job_->spec())) return absl::OkStatus();
  ASSIGN_OR_RETURN(checkpointer_,
                   Checkpointer::Create(
                       job_->layout(), training_->owned(),
                       {.checkpoints_folder = CheckpointsFolder(),
                        .staging_folder = absl::StrCat(
                            job_->spec().output_directory(), "/", start.nonce),
                        .rank = prepare_.rank,
                        .world = world(),
                        .every_steps = spec.every_steps(),
                        .every = absl::Minutes(spec.every_minutes()),
                        .keep = spec.keep(),
                        .max_steps = job_->max_steps(),
                        .complete_step_count = start.first_step},
                       *environment_.clock));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Communicator>> Generation::Connect(
    const Start& start) {
  if (static_cast<int>(start.micro_batches.size()) != world() ||
      static_cast<int>(start.peer_addresses.size()) != world()) {
    return absl::InternalError(absl::StrCat(
        "start: expected ", world(), " ranks, got ", start.micro_batches.size(),
        " ranges and ", start.peer_addresses.size(), " addresses"));
  }
  if (prepare_.rank != 0) {
    RETURN_IF_ERROR(CausedBy(
        Failure::Cause::kJob,
        OutputDirectory::Verify(job_->spec().output_directory(), start.nonce)));
  }
  if (world() == 1) return std::move(MakeLoopbackGroup(1).front());
  absl::StatusOr<std::unique_ptr<Communicator>> communicator =
      listener_->Connect(
          start.peer_addresses,
          environment_.clock->Now() + environment_.connect_timeout);
  if (!communicator.ok()) {
    failed_peer_ = listener_->failed_peer();
    // A rank that insists on what it cannot have would on the next try too.
    const bool refused = absl::IsFailedPrecondition(communicator.status()) &&
                         !failed_peer_.has_value();
    return CausedBy(refused ? Failure::Cause::kJob : Failure::Cause::kPeer,
                    communicator.status());
  }
  const absl::Status& shared = listener_->shared_memory();
  held_.collectives =
      shared.ok() ? CollectivesInUse::kSharedMemory : CollectivesInUse::kTcp;
  LOG(INFO) << "connected" << Field("job", held_.key.job)
            << Field("generation", held_.key.generation)
            << Field("rank", held_.rank)
            << Field("collectives", shared.ok() ? "shared-memory" : "tcp")
            << Field("reason",
                     shared.ok() ? "all ranks share memory" : shared.message());
  return communicator;
}

absl::Status Generation::Train(int64_t first_step) {
  for (int64_t step = first_step; step < job_->max_steps(); ++step) {
    Votes votes;
    if (checkpointer_ != nullptr) checkpointer_->AddVotes(step + 1, votes);
    absl::StatusOr<StepOutcome> outcome = training_->Step(votes);
    if (!outcome.ok()) {
      return CausedBy(CauseOf(outcome.status()),
                      Annotate(outcome.status(), absl::StrCat("step ", step)));
    }
    if (checkpointer_ != nullptr) RETURN_IF_ERROR(Save(*outcome));
    std::optional<EvaluationOutcome> evaluation;
    if (job_->EvaluatesAfter(step)) {
      ASSIGN_OR_RETURN(evaluation, training_->Evaluate());
    }
    held_.committed_step_count = step + 1;
    // So that the last report has the last checkpoint.
    if (step + 1 == job_->max_steps()) RETURN_IF_ERROR(SettleCheckpoints());
    Report(*outcome, evaluation);
    // One step, after the first ones have warmed everything up.
    if (step == first_step + 2) LogTrace(*outcome);
  }
  if (training_->weights_are_sharded()) RETURN_IF_ERROR(WriteWeights());
  // A connection that breaks after this is no incident.
  return training_->Barrier();
}

absl::Status Generation::Save(StepOutcome& step) {
  checkpointer_->OnCommit(step.result);
  if (!step.result.checkpoint) return absl::OkStatus();
  const Instant start = environment_.clock->Now();
  RETURN_IF_ERROR(SettleCheckpoints());
  RETURN_IF_ERROR(training_->CopyState(checkpointer_->Snapshot()));
  CheckpointInfo info = training_->DescribeState(held_.key);
  info.ledger = held_.ledger;
  own_row_.end_step = info.step_count;
  info.ledger.push_back(own_row_);
  checkpointer_->Save(std::move(info));
  step.checkpoint_stall = environment_.clock->Now() - start;
  step.update += step.checkpoint_stall;
  step.duration += step.checkpoint_stall;
  return absl::OkStatus();
}

absl::Status Generation::SettleCheckpoints() {
  if (checkpointer_ == nullptr) return absl::OkStatus();
  return checkpointer_->Settle(
      [this](int64_t* words, int64_t count) {
        return training_->MaxOverRanks(words, count);
      },
      [this] {
        environment_.on_progress();
        return aborted();
      });
}

absl::Status Generation::WriteWeights() {
  RETURN_IF_ERROR(training_->ReadWeights([this](int unit, const float* values) {
    if (writer_ == nullptr) return absl::OkStatus();
    return writer_->WriteUnit(unit, values, environment_.on_progress);
  }));
  return writer_ == nullptr ? absl::OkStatus() : writer_->Finish();
}

absl::Status Generation::Finish() {
  if (prepare_.rank == 0 && !training_->weights_are_sharded()) {
    RETURN_IF_ERROR(WriteWeights());
  }
  Tell(Phase::kOutputReady);
  {
    MutexLock lock(&mutex_);
    while (!commit_output_ && !aborted_) changed_.Wait(&mutex_);
    if (aborted_ || prepare_.rank != 0) return absl::OkStatus();
  }
  RETURN_IF_ERROR(CausedBy(Failure::Cause::kJob, output_->Commit()));
  Tell(Phase::kFinished);
  return absl::OkStatus();
}

void Generation::Report(const StepOutcome& step,
                        const std::optional<EvaluationOutcome>& evaluation) {
  v1::StepMetrics m;
  m.set_job(absl::StrCat("jobs/", held_.key.job.value));
  m.set_generation(held_.key.generation);
  m.set_step(step.step);
  m.set_rank(held_.rank);
  m.set_worker(absl::StrCat("workers/", environment_.worker.value));
  *m.mutable_end_time() = TimeToProto(environment_.clock->WallNow());
  m.set_loss(step.result.loss.mean());
  m.set_gradient_norm(step.result.gradient_norm);
  m.set_learning_rate(step.learning_rate);
  m.set_token_count(step.result.loss.token_count);
  m.set_micro_batch_count(static_cast<int32_t>(step.micro_batch_count));
  m.set_skipped(step.result.skipped());
  m.set_skip_reason(step.skip_reason);
  if (step.result.skipped() && held_.rank == 0) {
    LOG(WARNING) << "step skipped" << Field("job", held_.key.job)
                 << Field("step", step.step)
                 << Field("reason", step.skip_reason);
  }
  *m.mutable_step_duration() = DurationToProto(step.duration);
  *m.mutable_data_wait() = DurationToProto(step.data_wait);
  *m.mutable_forward() = DurationToProto(step.forward);
  *m.mutable_backward() = DurationToProto(step.backward);
  *m.mutable_exposed_communication() = DurationToProto(step.trace.exposed);
  *m.mutable_update() = DurationToProto(step.update);
  *m.mutable_communication() = DurationToProto(step.trace.communication);
  m.set_sent_bytes(step.trace.sent_bytes);
  m.set_bucket_count(static_cast<int32_t>(step.trace.buckets.size()));
  m.set_overlapped_bucket_count(static_cast<int32_t>(
      std::count_if(step.trace.buckets.begin(), step.trace.buckets.end(),
                    [&](const BucketTrace& b) {
                      return b.start < step.trace.backward_end;
                    })));
  m.set_wide_bucket_count(static_cast<int32_t>(
      std::count_if(step.trace.buckets.begin(), step.trace.buckets.end(),
                    [](const BucketTrace& b) { return b.wide; })));
  m.set_device_memory_bytes(environment_.device->allocated_bytes());
  m.set_peak_resident_bytes(PeakResidentBytes());
  m.set_loss_spike(step.loss_spike);
  if (step.loss_spike && held_.rank == 0) {
    LOG(WARNING) << "the loss jumped" << Field("job", held_.key.job)
                 << Field("step", step.step) << Field("loss", m.loss());
  }
  if (evaluation.has_value()) {
    m.set_held_out_loss(evaluation->loss.mean());
    m.set_held_out_token_count(evaluation->loss.token_count);
    *m.mutable_evaluation() = DurationToProto(evaluation->duration);
  }
  if (checkpointer_ != nullptr && held_.rank == 0) {
    m.set_checkpoint_step_count(checkpointer_->complete_step_count());
  }
  if (checkpointer_ != nullptr) {
    if (const auto failure = checkpointer_->TakeFailure()) {
      LOG(WARNING) << "no checkpoint" << Field("job", held_.key.job)
                   << Field("rank", held_.rank) << Field("reason", *failure);
      m.set_checkpoint_failure(*failure);
    }
    *m.mutable_checkpoint_stall() = DurationToProto(step.checkpoint_stall);
  }
  if (held_.rank == 0 && m.checkpoint_failure().empty()) {
    m.set_checkpoint_failure(std::exchange(passed_over_, ""));
  }
  environment_.on_step(m);
}

void Generation::LogTrace(const StepOutcome& step) const {
  std::string buckets;
  for (const BucketTrace& b : step.trace.buckets) {
    if (buckets.size() > 2000) {
      absl::StrAppend(&buckets, " ...");
      break;
    }
    absl::StrAppendFormat(
        &buckets, "%s%s:%.1f-%.1f", buckets.empty() ? "" : " ",
        job_->layout().units[b.unit].name, Ms(b.start), Ms(b.end));
  }
  LOG(INFO) << "step trace, in milliseconds from the step's start"
            << Field("job", held_.key.job) << Field("step", step.step)
            << Field("rank", held_.rank)
            << Field("backward_end", Ms(step.trace.backward_end))
            << Field("communication", Ms(step.trace.communication))
            << Field("exposed", Ms(step.trace.exposed))
            << Field("step_end", Ms(step.duration))
            << Field("reductions", buckets);
}

}  // namespace lockstep
