#include "worker/trainer/training.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/sha256.h"
#include "common/spec.h"
#include "common/status.h"
#include "worker/trainer/failure.h"

namespace lockstep {
namespace {

// Adds the time from its making to its end to a sum.
class Stopwatch {
 public:
  Stopwatch(Clock& clock, absl::Duration& sum)
      : clock_(clock), sum_(sum), start_(clock.Now()) {}
  ~Stopwatch() { sum_ += clock_.Now() - start_; }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  Clock& clock_;
  absl::Duration& sum_;
  const Instant start_;
};

}  // namespace

// Adds the time from its making to its end, without what was spent waiting for
// other ranks, to a sum.
class Training::ComputeStopwatch {
 public:
  ComputeStopwatch(Training& training, absl::Duration& sum)
      : training_(training),
        sum_(sum),
        start_(training.clock_.Now()),
        waited_before_(Waited()) {}
  ~ComputeStopwatch() {
    sum_ += training_.clock_.Now() - start_ - (Waited() - waited_before_);
  }
  ComputeStopwatch(const ComputeStopwatch&) = delete;
  ComputeStopwatch& operator=(const ComputeStopwatch&) = delete;

 private:
  absl::Duration Waited() const {
    return training_.parameters_->waited() + training_.reducer_->waited();
  }

  Training& training_;
  absl::Duration& sum_;
  const Instant start_;
  const absl::Duration waited_before_;
};

// Lets an abort end backward between two tensors.
class Training::Sink : public GradientSink {
 public:
  explicit Sink(Training& training) : training_(training) {}
  absl::Status Contribute(int tensor, const float* gradient) override {
    if (training_.is_aborted_) return training_.aborted();
    training_.on_progress_();
    return training_.reducer_->Contribute(tensor, gradient);
  }
  absl::Status UnitDone(int unit) override {
    return training_.reducer_->UnitDone(unit);
  }

 private:
  Training& training_;
};

absl::StatusOr<std::unique_ptr<Training>> Training::Create(
    const OpenedJob& job, int rank, int world, kernels::Device& device,
    Clock& clock, const Checkpoint* from, std::function<void()> on_progress) {
  auto training = std::unique_ptr<Training>(
      new Training(job, rank, world, device, clock, std::move(on_progress)));
  RETURN_IF_ERROR(training->Allocate());
  RETURN_IF_ERROR(from != nullptr ? training->Restore(*from)
                                  : training->LoadStart());
  return training;
}

absl::Status Training::Allocate() {
  const v1::JobSpec& spec = job_.spec();
  const Layout& layout = job_.layout();
  ASSIGN_OR_RETURN(stream_, device_.CreateStream());
  const Products products =
      spec.numerics().precision() == v1::NumericsSpec::BFLOAT16
          ? Products::kBfloat16
          : Products::kFloat32;
  const int64_t bucket_bytes = spec.parallel().bucket_bytes();
  ASSIGN_OR_RETURN(parameters_,
                   ParameterStore::Create(layout,
                                          {.zero_stage = zero_stage(),
                                           .rank = rank_,
                                           .world = world_,
                                           .bucket_bytes = bucket_bytes,
                                           .tied_head = job_.model().tied_head,
                                           .products = products},
                                          *stream_, clock_));
  ASSIGN_OR_RETURN(
      decoder_,
      Decoder::Create(
          job_.model(), layout, spec.batch().micro_batch_size(),
          spec.data().sequence_length(), *stream_, *parameters_,
          {.products = products,
           .recompute = spec.parallel().recompute() == v1::ParallelSpec::BLOCK
                            ? Recompute::kBlock
                            : Recompute::kNone,
           .dropout = spec.numerics().dropout(),
           .dropout_seed = spec.numerics().seed()}));
  const v1::OptimizerSpec& optimizer = spec.optimizer();
  ASSIGN_OR_RETURN(optimizer_,
                   Optimizer::Create(layout,
                                     ShardsOptimizer(zero_stage())
                                         ? owned_
                                         : ShardsOf(layout, PlanOf(job_), 0, 1),
                                     {.beta1 = optimizer.beta1(),
                                      .beta2 = optimizer.beta2(),
                                      .epsilon = optimizer.epsilon(),
                                      .weight_decay = optimizer.weight_decay(),
                                      .clip_norm = optimizer.clip_norm()},
                                     *stream_));
  unit_histories_.resize(layout.tensors.size());
  return stream_->Synchronize();
}

absl::Status Training::LoadStart() {
  Sha256 digest;
  RETURN_IF_ERROR(parameters_->Load([&](int unit, float* values) {
    on_progress_();
    absl::Status status = job_.LoadUnit(unit, values);
    digest.Update(values, job_.layout().units[unit].range.element_count *
                              int64_t{sizeof(float)});
    return status;
  }));
  const Checkpoint* const start = job_.start_checkpoint();
  if (start != nullptr) digest.Update(start->digest());
  weights_digest_ = digest.HexDigest();
  if (start == nullptr || !job_.spec().model().checkpoint().optimizer()) {
    return absl::OkStatus();
  }
  return RestoreOptimizer(*start);
}

ReductionPlan Training::PlanOf(const OpenedJob& job) {
  return MakeReductionPlan(job.layout(), job.spec().parallel().bucket_bytes() /
                                             int64_t{sizeof(float)});
}

absl::Status Training::Restore(const Checkpoint& checkpoint) {
  const CheckpointInfo& info = checkpoint.info();
  const Layout& layout = job_.layout();
  const auto refuse = [&](absl::string_view what, absl::string_view here,
                          absl::string_view there) {
    return CausedBy(Failure::Cause::kJob,
                    absl::FailedPreconditionError(absl::StrCat(
                        checkpoint.folder(), ": it was made with ", what, " ",
                        there, ", and this job has ", here,
                        "; give the job what it was made with, or an "
                        "output_directory of its own")));
  };
  if (info.data_digest != job_.data_digest()) {
    return refuse("data of the fingerprint", job_.data_digest(),
                  info.data_digest);
  }
  if (info.numeric_class != device_.numeric_class()) {
    return refuse("a device of the numeric class", device_.numeric_class(),
                  info.numeric_class);
  }
  if (!(info.model == job_.model())) {
    return refuse(
        "another model, of", absl::StrCat(layout.parameter_count),
        absl::StrCat(checkpoint.layout().parameter_count, " parameters"));
  }
  RETURN_IF_ERROR(parameters_->Load([&](int unit, float* values) {
    on_progress_();
    return checkpoint.ReadUnit(unit, values);
  }));
  RETURN_IF_ERROR(RestoreOptimizer(checkpoint));
  skipped_in_a_row_ = static_cast<int>(info.skipped_in_a_row);
  weights_digest_ = checkpoint.digest();
  return absl::OkStatus();
}

absl::Status Training::RestoreOptimizer(const Checkpoint& checkpoint) {
  const CheckpointInfo& info = checkpoint.info();
  const Layout& layout = job_.layout();
  // Where there are no pieces the moments stay zeros.
  std::vector<float> values;
  for (const TensorPiece& piece : optimizer_->pieces()) {
    on_progress_();
    values.resize(piece.range.element_count);
    const int64_t begin =
        piece.range.offset - layout.tensors[piece.tensor].offset;
    for (const int kind : {1, 2}) {
      float* const moments =
          kind == 1 ? optimizer_->moment1() : optimizer_->moment2();
      RETURN_IF_ERROR(checkpoint.Read(
          kind, piece.tensor, begin, piece.range.element_count, values.data()));
      RETURN_IF_ERROR(stream_->CopyToDevice(
          moments + piece.owned_offset, values.data(),
          piece.range.element_count * int64_t{sizeof(float)}));
      RETURN_IF_ERROR(stream_->Synchronize());
    }
  }
  optimizer_->set_update_count(info.update_count);
  for (size_t t = 0; t < unit_histories_.size(); ++t) {
    const std::vector<int32_t>& powers = info.unit_powers[t];
    UnitHistory& history = unit_histories_[t];
    if (powers.size() > history.powers.size()) {
      return CausedBy(Failure::Cause::kJob,
                      absl::InvalidArgumentError(absl::StrCat(
                          checkpoint.folder(), "/manifest.json: unit_powers: ",
                          "expected at most ", history.powers.size(), " of ",
                          layout.tensors[t].name)));
    }
    history = {};
    history.count = static_cast<int32_t>(powers.size());
    std::copy(powers.begin(), powers.end(), history.powers.begin());
  }
  return absl::OkStatus();
}

absl::Status Training::CopyState(
    const std::array<float*, kStateKindCount>& to) {
  const StateArray<float> from[kStateKindCount] = {
      parameters_->values(), Moments(optimizer_->moment1()),
      Moments(optimizer_->moment2())};
  for (int kind = 0; kind < kStateKindCount; ++kind) {
    for (const TensorPiece& piece : owned_.pieces) {
      RETURN_IF_ERROR(stream_->CopyToHost(
          to[kind] + piece.owned_offset, from[kind].At(piece),
          piece.range.element_count * int64_t{sizeof(float)}));
    }
  }
  return stream_->Synchronize();
}

CheckpointInfo Training::DescribeState(const GenerationKey& key) const {
  CheckpointInfo info;
  info.job = key.job.value;
  info.generation = key.generation;
  info.step_count = next_step_;
  info.spec_digest = job_.spec_digest();
  info.data_digest = job_.data_digest();
  info.numeric_class = device_.numeric_class();
  info.model = job_.model();
  info.dropout = job_.spec().numerics().dropout();
  info.source_folder = job_.source_folder();
  info.update_count = optimizer_->update_count();
  info.skipped_in_a_row = skipped_in_a_row_;
  for (const UnitHistory& history : unit_histories_) {
    info.unit_powers.emplace_back(history.powers.begin(),
                                  history.powers.begin() + history.count);
  }
  return info;
}

absl::Status Training::MaxOverRanks(int64_t* words, int64_t count) {
  return Blame(comm_->Run(
      [&](Communicator& c) { return c.AllReduceMax(words, count); }));
}

absl::Status Training::Join(std::unique_ptr<Communicator> communicator,
                            const std::vector<WorkerId>& workers,
                            const std::vector<MicroBatchRange>& ranges,
                            int64_t first_step) {
  LS_CHECK(comm_ == nullptr && communicator->rank() == rank_ &&
           communicator->world() == world_ &&
           static_cast<int>(ranges.size()) == world_ &&
           static_cast<int>(workers.size()) == world_);
  const v1::JobSpec& spec = job_.spec();
  range_ = ranges[rank_];
  int64_t round_count = 0;
  for (const MicroBatchRange& range : ranges) {
    round_count = std::max(round_count, range.count);
  }
  next_step_ = first_step;
  {
    MutexLock lock(&mutex_);
    comm_ = std::make_unique<CommThread>(std::move(communicator));
    if (!abort_.ok()) comm_->Abort(abort_);
  }
  parameters_->Join(*comm_);
  ASSIGN_OR_RETURN(reducer_,
                   GradientReducer::Create(
                       job_.layout(),
                       {.bucket_bytes = spec.parallel().bucket_bytes(),
                        .overlap = spec.parallel().overlap(),
                        .zero_stage = zero_stage(),
                        .round_count = round_count,
                        .scale = {.micro_batch_count = job_.micro_batch_count(),
                                  .nominal_token_count = TokensPerStep(spec)},
                        .inputs = {.spec = job_.spec_digest(),
                                   .data = job_.data_digest(),
                                   .weights = weights_digest_}},
                       *stream_, *comm_, clock_));
  const absl::StatusOr<std::optional<PlanDifference>> difference =
      reducer_->ComparePlans();
  if (!difference.ok()) return Blame(difference.status());
  if (difference->has_value()) return Describe(**difference, workers);
  ASSIGN_OR_RETURN(std::unique_ptr<MicroBatchReader> reader,
                   MicroBatchReader::Create(
                       &job_.tokens(),
                       {.seed = spec.numerics().seed(),
                        .order = job_.order(),
                        .global_batch_size = spec.batch().global_batch_size(),
                        .micro_batch_size = spec.batch().micro_batch_size(),
                        .range = range_,
                        .first_step = first_step,
                        .end_step = job_.max_steps()}));
  MutexLock lock(&mutex_);
  reader_ = std::move(reader);
  if (!abort_.ok()) reader_->Cancel();
  return absl::OkStatus();
}

absl::Status Training::Describe(const PlanDifference& difference,
                                const std::vector<WorkerId>& workers) {
  const auto name = [&](int rank) {
    return absl::StrCat("rank ", rank, " (worker ", workers[rank].value, ")");
  };
  std::vector<absl::string_view> parts;
  std::string by_file;
  for (const int part : difference.parts) {
    parts.push_back(PlanDigest::kPartNames[part]);
    if (part != PlanDigest::kDataPart) continue;
    const std::optional<FileDifference> file = FindFileThatDiffers();
    if (!file.has_value()) continue;
    by_file = absl::StrCat(file->path, " is not the same for ",
                           name(file->rank), " as for ", name(0), ": ");
  }
  return CausedBy(
      Failure::Cause::kJob,
      absl::FailedPreconditionError(absl::StrCat(
          by_file, name(difference.rank), " differs from ", name(0), " in ",
          absl::StrJoin(parts, " and "), "; this is ", name(rank_),
          ", numeric class ", device_.numeric_class(),
          ": workers of a job must run the same version on the same kind of "
          "device, and see the same files under the same paths")));
}

std::optional<Training::FileDifference> Training::FindFileThatDiffers() {
  const auto files = job_.tokens().FileDigests();
  constexpr int64_t kDigestBytes = 64;
  const int64_t count = files.ok() ? std::ssize(*files) : 0;
  std::string mine(count * kDigestBytes, '?');
  for (int64_t i = 0; i < count; ++i) {
    mine.replace(i * kDigestBytes, kDigestBytes, (*files)[i].digest);
  }
  std::string first = mine;
  const auto spread = [&](Communicator& c) {
    return c.Broadcast(first.data(), std::ssize(first), 0);
  };
  // Ranks with another number of files do not get here: the spec has them.
  if (!comm_->Run(spread).ok()) return std::nullopt;
  std::vector<int64_t> differs(count);
  for (int64_t i = 0; i < count; ++i) {
    differs[i] = first.compare(i * kDigestBytes, kDigestBytes, mine,
                               i * kDigestBytes, kDigestBytes) == 0
                     ? 0
                     : 1 + rank_;
  }
  const auto collect = [&](Communicator& c) {
    return c.AllReduceMax(differs.data(), count);
  };
  if (!comm_->Run(collect).ok()) return std::nullopt;
  for (int64_t i = 0; i < count; ++i) {
    if (differs[i] == 0) continue;
    return FileDifference{(*files)[i].path, static_cast<int>(differs[i] - 1)};
  }
  return std::nullopt;
}

absl::StatusOr<StepOutcome> Training::Step(const Votes& votes) {
  absl::StatusOr<StepOutcome> outcome = TakeStep(votes);
  // The other ranks must not wait for this one.
  if (!outcome.ok()) Abort(outcome.status());
  return outcome;
}

absl::StatusOr<StepOutcome> Training::TakeStep(const Votes& votes) {
  StepOutcome outcome;
  outcome.step = next_step_;
  outcome.learning_rate = LearningRate(job_.schedule(), next_step_);
  outcome.micro_batch_count = range_.count;
  const Instant start = clock_.Now();
  const absl::Duration waited_before = parameters_->waited();
  const std::vector<int> exponents = UnitExponents(
      unit_histories_, {.micro_batch_count = job_.micro_batch_count(),
                        .nominal_token_count = TokensPerStep(job_.spec())});
  RETURN_IF_ERROR(Blame(reducer_->BeginStep(exponents, range_.count)));
  for (int64_t i = 0; i < range_.count; ++i) {
    if (is_aborted_) return aborted();
    RETURN_IF_ERROR(RunMicroBatch(outcome));
  }
  RETURN_IF_ERROR(Blame(RunIdleRounds()));
  Votes mine = votes;
  mine.plan_version = 1;
  absl::StatusOr<StepResult> result = reducer_->Commit(mine);
  if (!result.ok()) return Blame(result.status());
  outcome.result = *std::move(result);
  const int64_t gathered = parameters_->sent_bytes();
  {
    Stopwatch watch(clock_, outcome.update);
    RETURN_IF_ERROR(optimizer_->Apply(
        outcome.result, outcome.learning_rate, reducer_->sums(),
        parameters_->values(),
        [this](int unit) { return parameters_->UnitUpdated(unit); }));
    for (size_t t = 0; t < unit_histories_.size(); ++t) {
      const TensorResult& tensor = outcome.result.tensors[t];
      if (outcome.result.skipped()) {
        ResetUnit(unit_histories_[t]);
      } else {
        AdvanceUnit(unit_histories_[t], tensor.exponent, tensor.max_sum);
      }
    }
    RETURN_IF_ERROR(stream_->Synchronize());
  }
  outcome.trace = reducer_->trace();
  outcome.trace.exposed += parameters_->waited() - waited_before;
  outcome.trace.sent_bytes += gathered - gathered_before_;
  gathered_before_ = gathered;
  outcome.duration = clock_.Now() - start;
  ++next_step_;
  outcome.skip_reason = SkipReason(outcome.result);
  if (!outcome.result.skipped()) {
    outcome.loss_spike = loss_watch_.IsSpike(outcome.result.loss.mean());
  }
  if (outcome.result.nothing_counts) return outcome;
  skipped_in_a_row_ = outcome.result.skipped() ? skipped_in_a_row_ + 1 : 0;
  const v1::NumericsSpec& numerics = job_.spec().numerics();
  const bool stop = numerics.non_finite() == v1::NumericsSpec::STOP;
  if (skipped_in_a_row_ >= (stop ? 1 : numerics.skipped_steps_max())) {
    return CausedBy(
        Failure::Cause::kJob,
        absl::OutOfRangeError(absl::StrCat(
            outcome.skip_reason,
            stop ? " (numerics.non_finite is STOP)"
                 : absl::StrCat(", and the ", skipped_in_a_row_ - 1,
                                " steps before it were skipped too"),
            "; lower schedule.peak_learning_rate, lengthen "
            "schedule.warmup_steps, or look at the data")));
  }
  return outcome;
}

std::string Training::SkipReason(const StepResult& result) const {
  if (result.nothing_counts) return "no target of the step counts";
  if (result.gradient_overflow) {
    const Tensor& tensor = job_.layout().tensors[result.overflow_tensor];
    return absl::StrCat("the gradient of ", tensor.name,
                        " is not finite, or too large for its unit of 2^",
                        result.tensors[result.overflow_tensor].exponent);
  }
  return result.loss_not_finite ? "the loss is not finite" : "";
}

absl::Status Training::RunIdleRounds() {
  Sink sink(*this);
  for (int64_t i = 0; i < reducer_->idle_round_count(); ++i) {
    if (is_aborted_) return aborted();
    RETURN_IF_ERROR(parameters_->BeginPass(Pass::kMicroBatch));
    RETURN_IF_ERROR(parameters_->TakePart(Pass::kMicroBatch, sink));
    RETURN_IF_ERROR(reducer_->EndMicroBatch({}));
  }
  return absl::OkStatus();
}

absl::Status Training::RunMicroBatch(StepOutcome& outcome) {
  MicroBatch batch;
  {
    Stopwatch watch(clock_, outcome.data_wait);
    absl::StatusOr<MicroBatch> next = reader_->Next();
    if (!next.ok()) {
      if (is_aborted_) return aborted();
      return CausedBy(Failure::Cause::kJob, next.status());
    }
    batch = *next;
  }
  LS_CHECK(batch.step == next_step_);
  {
    ComputeStopwatch watch(*this, outcome.forward);
    const v1::BatchSpec& sizes = job_.spec().batch();
    // By position in the job, not by which text stands there.
    const int64_t first_sample = batch.step * sizes.global_batch_size() +
                                 batch.index * sizes.micro_batch_size();
    RETURN_IF_ERROR(Blame(parameters_->BeginPass(Pass::kMicroBatch)));
    RETURN_IF_ERROR(Blame(decoder_->Forward(batch.tokens, first_sample)));
    // Where work is only enqueued, the time would show up later.
    RETURN_IF_ERROR(stream_->Synchronize());
  }
  {
    ComputeStopwatch watch(*this, outcome.backward);
    Sink sink(*this);
    const absl::StatusOr<LossSum> loss = decoder_->Backward(sink);
    if (!loss.ok()) return Blame(loss.status());
    RETURN_IF_ERROR(reducer_->EndMicroBatch(*loss));
  }
  return absl::OkStatus();
}

absl::StatusOr<EvaluationOutcome> Training::Evaluate() {
  EvaluationOutcome outcome;
  Stopwatch watch(clock_, outcome.duration);
  absl::StatusOr<ExactLoss> loss = SumHeldOutLoss();
  if (!loss.ok()) {
    Abort(loss.status());
    return loss.status();
  }
  outcome.loss = *loss;
  return outcome;
}

absl::StatusOr<ExactLoss> Training::SumHeldOutLoss() {
  const int64_t rows = job_.spec().batch().micro_batch_size();
  const int64_t row_tokens = job_.tokens().sequence_length() + 1;
  const int64_t count = job_.tokens().held_out_sample_count();
  std::vector<int32_t> tokens(rows * row_tokens);
  ExactLoss mine;
  // Batches are cut in one way, whoever takes them.
  const int64_t batch_count = (count + rows - 1) / rows;
  for (int64_t round = 0; round * world_ < batch_count; ++round) {
    if (is_aborted_) return aborted();
    on_progress_();
    RETURN_IF_ERROR(Blame(parameters_->BeginPass(Pass::kEvaluation)));
    const int64_t batch = round * world_ + rank_;
    if (batch >= batch_count) {
      Sink sink(*this);
      RETURN_IF_ERROR(Blame(parameters_->TakePart(Pass::kEvaluation, sink)));
      continue;
    }
    const int64_t row_count = std::min(rows, count - batch * rows);
    for (int64_t row = 0; row < row_count; ++row) {
      RETURN_IF_ERROR(
          CausedBy(Failure::Cause::kJob,
                   job_.tokens().ReadHeldOutSample(batch * rows + row,
                                                   &tokens[row * row_tokens])));
    }
    const absl::StatusOr<LossSum> loss =
        decoder_->Evaluate(tokens.data(), row_count);
    if (!loss.ok()) return Blame(loss.status());
    mine.Add(*loss);
  }
  absl::StatusOr<ExactLoss> sum = SumOverRanks(*comm_, mine);
  if (!sum.ok()) return Blame(sum.status());
  return sum;
}

absl::Status Training::Barrier() {
  return Blame(comm_->Run([](Communicator& c) { return c.Barrier(); }));
}

bool Training::weights_are_sharded() const {
  return ShardsParameters(zero_stage());
}

absl::Status Training::ReadWeights(
    const std::function<absl::Status(int unit, const float* values)>& use) {
  RETURN_IF_ERROR(Blame(parameters_->BeginPass(Pass::kWeights)));
  std::vector<float> host;
  for (int u = 0; u < static_cast<int>(job_.layout().units.size()); ++u) {
    if (is_aborted_) return aborted();
    on_progress_();
    const absl::StatusOr<ParameterSource::Values> unit =
        parameters_->Acquire(u);
    if (!unit.ok()) return Blame(unit.status());
    const int64_t count = job_.layout().units[u].range.element_count;
    host.resize(count);
    RETURN_IF_ERROR(stream_->CopyToHost(host.data(), unit->values,
                                        count * int64_t{sizeof(float)}));
    RETURN_IF_ERROR(stream_->Synchronize());
    RETURN_IF_ERROR(parameters_->Release(u));
    RETURN_IF_ERROR(use(u, host.data()));
  }
  return absl::OkStatus();
}

absl::Status Training::Blame(absl::Status status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:  // Another rank ended the collective.
      return CausedBy(Failure::Cause::kPeer, std::move(status));
    default:
      return status;
  }
}

void Training::Abort(absl::Status why) {
  LS_CHECK(!why.ok());
  MutexLock lock(&mutex_);
  if (abort_.ok()) abort_ = why;
  is_aborted_ = true;
  if (comm_ != nullptr) comm_->Abort(why);
  if (reader_ != nullptr) reader_->Cancel();
}

absl::Status Training::aborted() const {
  MutexLock lock(&mutex_);
  return abort_;
}

}  // namespace lockstep
