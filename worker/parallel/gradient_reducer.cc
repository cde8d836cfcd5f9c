#include "worker/parallel/gradient_reducer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/commit_words.h"
#include "common/status.h"
#include "kernels/exact_sum.h"
#include "worker/parallel/exact_norm.h"
#include "worker/parallel/narrow_sum.h"

namespace lockstep {
namespace {

absl::Status OutOfOrder(absl::string_view what) {
  return absl::InternalError(
      absl::StrCat("gradient reducer: calls out of order: ", what));
}

}  // namespace

absl::StatusOr<std::unique_ptr<GradientReducer>> GradientReducer::Create(
    const Layout& layout, const ReducerOptions& options,
    kernels::Stream& stream, CommThread& comm, Clock& clock) {
  RETURN_IF_ERROR(ValidateExactScale(options.scale));
  if (options.bucket_bytes < 64) {
    return absl::InvalidArgumentError(absl::StrCat(
        "bucket_bytes: expected at least 64, got ", options.bucket_bytes));
  }
  if (options.zero_stage < 0 || options.zero_stage > 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("zero_stage: expected 0 to 3, got ", options.zero_stage));
  }
  // Communicators take host memory, which only this backend computes in.
  LS_CHECK(stream.backend() == kernels::Backend::kCpu);
  std::unique_ptr<GradientReducer> reducer(
      new GradientReducer(layout, options, stream, comm, clock));
  RETURN_IF_ERROR(reducer->Allocate());
  return reducer;
}

GradientReducer::GradientReducer(const Layout& layout,
                                 const ReducerOptions& options,
                                 kernels::Stream& stream, CommThread& comm,
                                 Clock& clock)
    : layout_(layout),
      options_(options),
      stream_(stream),
      comm_(comm),
      clock_(clock),
      plan_(MakeReductionPlan(layout,
                              options.bucket_bytes / int64_t{sizeof(float)})),
      digest_(DigestOf(layout, plan_,
                       {.zero_stage = options.zero_stage,
                        .round_count = options.round_count},
                       options.scale, stream.device().numeric_class(),
                       options.inputs)),
      owned_(ShardsOf(layout, plan_, comm.rank(), comm.world())),
      overflow_limit_(OverflowLimit(options.scale)) {}

GradientReducer::~GradientReducer() {
  // Its tasks use this object's memory.
  comm_.Wait().IgnoreError();
}

absl::Status GradientReducer::Allocate() {
  kernels::Device& device = stream_.device();
  const auto tensor_count = static_cast<int64_t>(layout_.tensors.size());
  constexpr int64_t kWord = sizeof(int64_t);
  const StateSizes sizes = StateSizesOf(
      layout_, options_.zero_stage, owned_.element_count, /*bfloat16=*/false);
  ASSIGN_OR_RETURN(sums_, device.Allocate(sizes.accumulators * kWord));
  if (ShardsGradients(options_.zero_stage)) {
    for (int s = 0; s < kUnitSlotCount; ++s) {
      ASSIGN_OR_RETURN(slots_[s].memory,
                       device.Allocate(sizes.staging_units[s] * kWord));
    }
  }
  ASSIGN_OR_RETURN(maxima_, device.Allocate(tensor_count * kWord));
  ASSIGN_OR_RETURN(squares_,
                   device.Allocate(tensor_count * kSquareLimbCount * kWord));
  ASSIGN_OR_RETURN(overflow_,
                   device.Allocate(layout_.tensors.size() * sizeof(int32_t)));
  for (size_t u = 0; u < layout_.units.size(); ++u) {
    ASSIGN_OR_RETURN(unit_events_.emplace_back(), device.CreateEvent());
  }
  return absl::OkStatus();
}

StateArray<const int64_t> GradientReducer::sums() {
  return {.data = sums_->as<int64_t>(),
          .is_owned = ShardsGradients(options_.zero_stage)};
}

absl::StatusOr<std::optional<PlanDifference>> GradientReducer::ComparePlans() {
  // Every rank's parts, one behind the other: 64 bytes of hexadecimal each.
  constexpr int64_t kPartBytes = 64;
  constexpr int64_t kRankBytes = PlanDigest::kPartCount * kPartBytes;
  static_assert(kRankBytes % kTensorAlignment == 0);
  // A shard is a multiple of the alignment's elements: so many for each rank.
  const int64_t n = comm_.world() * kTensorAlignment;
  std::string all(comm_.world() * kRankBytes, '\0');
  const std::string mine = absl::StrJoin(digest_.parts, "");
  LS_CHECK(static_cast<int64_t>(mine.size()) == kRankBytes);
  std::memcpy(&all[comm_.rank() * kRankBytes], mine.data(), mine.size());
  RETURN_IF_ERROR(comm_.Run([&](Communicator& c) {
    return c.AllGather(all.data(), n, kRankBytes / kTensorAlignment);
  }));

  for (int rank = 1; rank < comm_.world(); ++rank) {
    PlanDifference difference = {.rank = rank};
    for (int part = 0; part < PlanDigest::kPartCount; ++part) {
      const int64_t at = part * kPartBytes;
      if (all.compare(rank * kRankBytes + at, kPartBytes, all, at,
                      kPartBytes) != 0) {
        difference.parts.push_back(part);
      }
    }
    if (!difference.parts.empty()) return std::optional(std::move(difference));
  }
  return std::optional<PlanDifference>();
}

absl::Status GradientReducer::BeginStep(absl::Span<const int> exponents,
                                        int64_t micro_batch_count) {
  LS_CHECK(exponents.size() == layout_.tensors.size());
  LS_CHECK(0 <= micro_batch_count && micro_batch_count <= options_.round_count);
  // After a failed step its reductions may still be ending.
  RETURN_IF_ERROR(comm_.WaitFor(last_reduction_));

  step_start_ = clock_.Now();
  trace_ = {};
  trace_.buckets.reserve(plan_.buckets.size());
  exponents_.assign(exponents.begin(), exponents.end());
  micro_batch_count_ = micro_batch_count;
  ended_count_ = 0;
  waited_ = absl::ZeroDuration();
  backward_end_ = absl::ZeroDuration();
  for (Slot& slot : slots_) slot.unit = -1;
  next_unit_ = static_cast<int>(layout_.units.size()) - 1;
  loss_ = {};
  in_step_ = true;

  RETURN_IF_ERROR(stream_.Zero(sums_->data(), sums_->byte_count()));
  RETURN_IF_ERROR(stream_.Zero(maxima_->data(), maxima_->byte_count()));
  RETURN_IF_ERROR(stream_.Zero(squares_->data(), squares_->byte_count()));
  RETURN_IF_ERROR(stream_.Zero(overflow_->data(), overflow_->byte_count()));
  if (round_count() == 0) return PostAllUnits();
  return absl::OkStatus();
}

absl::Status GradientReducer::Contribute(int tensor, const float* gradient) {
  if (!in_step_ || ended_count_ >= micro_batch_count_) {
    return OutOfOrder("a contribution outside of a micro-batch");
  }
  const Tensor& t = layout_.tensors[tensor];
  if (t.unit > next_unit_) {
    return OutOfOrder(
        absl::StrCat("a contribution to ", t.name, " after its unit's end"));
  }
  ASSIGN_OR_RETURN(int64_t* const sums, AccumulatorOf(t.unit));
  return kernels::AccumulateExact(
      stream_, gradient, sums + t.offset - layout_.units[t.unit].range.offset,
      t.element_count, exponents_[tensor], overflow_limit_,
      overflow_->as<int32_t>() + tensor);
}

absl::StatusOr<int64_t*> GradientReducer::AccumulatorOf(int unit) {
  const FlatRange& range = layout_.units[unit].range;
  if (!ShardsGradients(options_.zero_stage)) {
    return sums_->as<int64_t>() + range.offset;
  }
  Slot& slot = slots_[SlotOfUnit(layout_, unit)];
  auto* const sums = slot.memory->as<int64_t>();
  if (slot.unit == unit) return sums;
  if (slot.unit != -1) {
    return OutOfOrder(absl::StrCat("unit ", unit, " begins before unit ",
                                   slot.unit, " ends"));
  }
  const Instant waiting_since = clock_.Now();
  RETURN_IF_ERROR(comm_.WaitFor(slot.reduction));
  waited_ += clock_.Now() - waiting_since;
  RETURN_IF_ERROR(
      stream_.Zero(sums, range.element_count * int64_t{sizeof(int64_t)}));
  slot.unit = unit;
  return sums;
}

absl::Status GradientReducer::UnitDone(int unit) {
  if (!in_step_ || ended_count_ >= round_count() || unit != next_unit_) {
    return OutOfOrder(
        absl::StrCat("unit ", unit, " done, expected ", next_unit_));
  }
  --next_unit_;
  // Backward need not go on for a step that cannot be committed.
  RETURN_IF_ERROR(comm_.status());
  if (!ShardsGradients(options_.zero_stage)) {
    if (ended_count_ + 1 < micro_batch_count_ || !options_.overlap) {
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(stream_.Record(*unit_events_[unit]));
    PostUnit(unit, sums_->as<int64_t>() + layout_.units[unit].range.offset);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(int64_t* const sums, AccumulatorOf(unit));
  RETURN_IF_ERROR(stream_.Record(*unit_events_[unit]));
  Slot& slot = slots_[SlotOfUnit(layout_, unit)];
  slot.reduction = PostUnit(unit, sums);
  slot.unit = -1;
  if (options_.overlap) return absl::OkStatus();
  const Instant waiting_since = clock_.Now();
  RETURN_IF_ERROR(comm_.WaitFor(slot.reduction));
  waited_ += clock_.Now() - waiting_since;
  return absl::OkStatus();
}

absl::Status GradientReducer::EndMicroBatch(const LossSum& loss) {
  if (!in_step_ || ended_count_ >= round_count() || next_unit_ != -1) {
    return OutOfOrder("the end of a micro-batch before that of its units");
  }
  loss_.Add(loss);
  ++ended_count_;
  if (ended_count_ == micro_batch_count_) backward_end_ = SinceStart();
  if (ended_count_ < round_count()) {
    next_unit_ = static_cast<int>(layout_.units.size()) - 1;
    return absl::OkStatus();
  }
  return options_.overlap || ShardsGradients(options_.zero_stage)
             ? absl::OkStatus()
             : PostAllUnits();
}

absl::Status GradientReducer::PostAllUnits() {
  for (int u = static_cast<int>(layout_.units.size()) - 1; u >= 0; --u) {
    RETURN_IF_ERROR(stream_.Record(*unit_events_[u]));
    PostUnit(u, sums_->as<int64_t>() + layout_.units[u].range.offset);
  }
  return absl::OkStatus();
}

int64_t GradientReducer::PostUnit(int unit, int64_t* sums) {
  last_reduction_ = comm_.Post(
      [this, unit, sums](Communicator& communicator) -> absl::Status {
        RETURN_IF_ERROR(unit_events_[unit]->Synchronize());
        const int64_t sent_before = communicator.sent_bytes();
        RETURN_IF_ERROR(ReduceUnit(communicator, unit, sums));
        trace_.sent_bytes += communicator.sent_bytes() - sent_before;
        return absl::OkStatus();
      });
  return last_reduction_;
}

absl::Status GradientReducer::ReduceUnit(Communicator& communicator, int unit,
                                         int64_t* sums) {
  const int first = plan_.first_bucket[unit];
  const int count = plan_.bucket_count[unit];
  absl::Duration start = SinceStart();
  const auto words = [&](int b) {
    return sums + plan_.buckets[first + b].range.offset -
           layout_.units[unit].range.offset;
  };
  // What the ranks' largest elements add up to proves, before anything is sent,
  // which sums fit 32 bits.
  std::vector<int64_t> largest(count);
  if (communicator.world() > 1) {
    for (int b = 0; b < count; ++b) {
      // So that the sum over ranks cannot overflow.
      largest[b] =
          std::min(kNarrowSumLimit,
                   LargestMagnitude(
                       words(b), plan_.buckets[first + b].range.element_count));
    }
    RETURN_IF_ERROR(communicator.AllReduceSum(largest.data(), count));
  }
  for (int b = 0; b < count; ++b) {
    const bool wide = largest[b] >= kNarrowSumLimit;
    RETURN_IF_ERROR(ReduceBucket(communicator, first + b, wide, words(b)));
    const absl::Duration end = SinceStart();
    trace_.buckets.push_back(
        {unit, plan_.buckets[first + b].range, start, end, wide});
    trace_.communication += end - start;
    start = end;
  }
  return absl::OkStatus();
}

absl::Status GradientReducer::ReduceBucket(Communicator& communicator,
                                           int bucket, bool wide,
                                           int64_t* sums) {
  const int64_t n = plan_.buckets[bucket].range.element_count;
  const bool narrow = !wide && communicator.world() > 1;
  if (narrow) PackNarrow(sums, n);
  const int64_t word_count = narrow ? NarrowWordCount(n) : n;
  if (!ShardsOptimizer(options_.zero_stage)) {
    RETURN_IF_ERROR(communicator.AllReduceSum(sums, word_count));
    if (narrow) UnpackNarrow(sums, n);
    return absl::OkStatus();
  }
  // Two elements are a word, and shards begin at even ones.
  const int64_t part = ShardSize(n, communicator.world());
  RETURN_IF_ERROR(communicator.ReduceScatterSum(sums, word_count,
                                                narrow ? part / 2 : part));
  const FlatRange mine = PartOf({0, n}, part, communicator.rank());
  if (narrow) {
    std::memmove(sums + mine.offset, sums + mine.offset / 2,
                 NarrowWordCount(mine.element_count) * sizeof(int64_t));
    UnpackNarrow(sums + mine.offset, mine.element_count);
  }
  if (!ShardsGradients(options_.zero_stage)) return absl::OkStatus();
  int64_t* const owned = sums_->as<int64_t>() + owned_.offsets[bucket];
  for (int64_t i = 0; i < mine.element_count; ++i) {
    owned[i] += sums[mine.offset + i];
  }
  return absl::OkStatus();
}

absl::Status GradientReducer::RunExposed(const CommThread::Task& task) {
  const Instant start = clock_.Now();
  RETURN_IF_ERROR(comm_.Run([&](Communicator& c) {
    const int64_t sent_before = c.sent_bytes();
    absl::Status status = task(c);
    trace_.sent_bytes += c.sent_bytes() - sent_before;
    return status;
  }));
  const absl::Duration took = clock_.Now() - start;
  trace_.exposed += took;
  trace_.communication += took;
  return absl::OkStatus();
}

absl::StatusOr<StepResult> GradientReducer::Commit(const Votes& votes) {
  if (!in_step_ || ended_count_ != round_count()) {
    return OutOfOrder(absl::StrCat("commit after ", ended_count_, " of ",
                                   round_count(), " rounds"));
  }
  in_step_ = false;
  const Instant waiting_since = clock_.Now();
  RETURN_IF_ERROR(comm_.Wait());
  trace_.exposed += waited_ + (clock_.Now() - waiting_since);
  trace_.backward_end = backward_end_;

  StepResult result;
  result.tensors.resize(layout_.tensors.size());
  RETURN_IF_ERROR(ReduceMaxima(votes, result));
  RETURN_IF_ERROR(ReduceSums(result));
  return result;
}

absl::Status GradientReducer::ReduceMaxima(const Votes& votes,
                                           StepResult& result) {
  for (const TensorPiece& p : owned_.pieces) {
    RETURN_IF_ERROR(kernels::MaxExact(stream_, sums().At(p),
                                      p.range.element_count,
                                      maxima_->as<int64_t>() + p.tensor));
  }
  std::vector<int64_t> words(CommitMaximaWords(layout_.tensors.size()));
  std::vector<int32_t> overflow(layout_.tensors.size());
  RETURN_IF_ERROR(stream_.CopyToHost(words.data() + kMaximaWordCount,
                                     maxima_->data(), maxima_->byte_count()));
  RETURN_IF_ERROR(stream_.CopyToHost(overflow.data(), overflow_->data(),
                                     overflow_->byte_count()));
  RETURN_IF_ERROR(stream_.Synchronize());
  // No sum is this large: it stands for what could not be added up.
  constexpr int64_t kOverflow = std::numeric_limits<int64_t>::max();
  for (size_t t = 0; t < overflow.size(); ++t) {
    if (overflow[t] != 0) words[kMaximaWordCount + t] = kOverflow;
  }
  words[kLossNotFinite] = loss_.not_finite_count;
  words[kStop] = votes.stop;
  words[kCheckpoint] = votes.checkpoint;
  words[kMinusPlanVersion] = -votes.plan_version;
  words[kMinusWritten] = -votes.written_step_count;
  words[kCheckpointFailed] = votes.failed_step_count;
  RETURN_IF_ERROR(RunExposed([&words](Communicator& c) {
    return c.AllReduceMax(words.data(), static_cast<int64_t>(words.size()));
  }));

  result.loss_not_finite = words[kLossNotFinite] != 0;
  result.stop = words[kStop] != 0;
  result.checkpoint = words[kCheckpoint] != 0;
  result.plan_version = -words[kMinusPlanVersion];
  result.written_step_count = -words[kMinusWritten];
  result.failed_step_count = words[kCheckpointFailed];
  for (size_t t = 0; t < result.tensors.size(); ++t) {
    result.tensors[t].exponent = exponents_[t];
    result.tensors[t].max_sum = words[kMaximaWordCount + t];
    if (result.tensors[t].max_sum != kOverflow) continue;
    if (!result.gradient_overflow) {
      result.overflow_tensor = static_cast<int>(t);
    }
    result.gradient_overflow = true;
  }
  return absl::OkStatus();
}

absl::Status GradientReducer::ReduceSums(StepResult& result) {
  for (const TensorPiece& p : owned_.pieces) {
    RETURN_IF_ERROR(kernels::AddSquaresExact(
        stream_, sums().At(p), p.range.element_count,
        squares_->as<int64_t>() + p.tensor * kSquareLimbCount));
  }
  std::vector<int64_t> words(CommitSumsWords(layout_.tensors.size()));
  RETURN_IF_ERROR(stream_.CopyToHost(words.data() + kSumsWordCount,
                                     squares_->data(), squares_->byte_count()));
  RETURN_IF_ERROR(stream_.Synchronize());
  ExactLossWords loss = ToWords(loss_);
  std::copy(loss.begin(), loss.end(), words.begin());
  words[kMicroBatchesWord] = micro_batch_count_;
  RETURN_IF_ERROR(RunExposed([&words](Communicator& c) {
    return c.AllReduceSum(words.data(), static_cast<int64_t>(words.size()));
  }));

  std::copy_n(words.begin(), kExactLossWordCount, loss.begin());
  result.loss = FromWords(loss);
  if (words[kMicroBatchesWord] != options_.scale.micro_batch_count) {
    return absl::InternalError(absl::StrCat(
        "ranks ran ", words[kMicroBatchesWord],
        " micro-batches in this step, expected ",
        options_.scale.micro_batch_count, ": the assignment is wrong"));
  }
  if (result.loss.token_count <= 0) {
    result.nothing_counts = true;
    return absl::OkStatus();
  }
  const auto token_count = static_cast<double>(result.loss.token_count);
  double total = 0;
  for (size_t t = 0; t < result.tensors.size(); ++t) {
    const double squares = SquaresToDouble(
        absl::MakeConstSpan(words).subspan(
            kSumsWordCount + t * kSquareLimbCount, kSquareLimbCount),
        exponents_[t]);
    result.tensors[t].norm = std::sqrt(squares) / token_count;
    total += squares;
  }
  result.gradient_norm = std::sqrt(total) / token_count;
  return absl::OkStatus();
}

}  // namespace lockstep
