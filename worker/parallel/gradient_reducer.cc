#include "worker/parallel/gradient_reducer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/status.h"
#include "kernels/exact_sum.h"
#include "worker/parallel/exact_norm.h"
#include "worker/parallel/narrow_sum.h"

namespace lockstep {
namespace {

using kernels::kSquareLimbCount;

// Words of the all-reduce of maxima, before the tensors'.
enum MaximaWord {
  kLossNotFinite,
  kStop,
  kCheckpoint,
  kMinusPlanVersion,
  kMaximaWordCount,
};

// Words of the all-reduce of sums, before the tensors' limbs: the loss's, then
// this.
constexpr int kMicroBatchesWord = kExactLossWordCount;
constexpr int kSumsWordCount = kExactLossWordCount + 1;

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
      digest_(DigestOf(layout, plan_, options.scale,
                       stream.device().numeric_class(), options.inputs)),
      pieces_(PiecesOf(layout, plan_, comm.rank(), comm.world())),
      overflow_limit_(OverflowLimit(options.scale)) {}

GradientReducer::~GradientReducer() {
  // Its tasks use this object's memory.
  comm_.Wait().IgnoreError();
}

absl::Status GradientReducer::Allocate() {
  kernels::Device& device = stream_.device();
  const auto tensor_count = static_cast<int64_t>(layout_.tensors.size());
  constexpr int64_t kWord = sizeof(int64_t);
  ASSIGN_OR_RETURN(sums_, device.Allocate(layout_.element_count * kWord));
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

const int64_t* GradientReducer::sums() { return sums_->as<int64_t>(); }

absl::Status GradientReducer::ComparePlans() {
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
    std::vector<absl::string_view> different;
    for (int part = 0; part < PlanDigest::kPartCount; ++part) {
      const int64_t at = part * kPartBytes;
      if (all.compare(rank * kRankBytes + at, kPartBytes, all, at,
                      kPartBytes) != 0) {
        different.push_back(PlanDigest::kPartNames[part]);
      }
    }
    if (different.empty()) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "rank ", rank, " differs from rank 0 in ",
        absl::StrJoin(different, " and "), "; this is rank ", comm_.rank(),
        ", numeric class ", stream_.device().numeric_class(),
        ": workers of a job must run the same version on the same kind of "
        "device, and see the same files under the same paths"));
  }
  return absl::OkStatus();
}

absl::Status GradientReducer::BeginStep(absl::Span<const int> exponents,
                                        int64_t micro_batch_count) {
  LS_CHECK(exponents.size() == layout_.tensors.size());
  LS_CHECK(micro_batch_count >= 0);
  // After a failed step its reductions may still be ending.
  RETURN_IF_ERROR(comm_.Wait());

  step_start_ = clock_.Now();
  sent_before_ = comm_.sent_bytes();
  trace_ = {};
  trace_.buckets.reserve(plan_.buckets.size());
  exponents_.assign(exponents.begin(), exponents.end());
  micro_batch_count_ = micro_batch_count;
  ended_count_ = 0;
  next_unit_ = static_cast<int>(layout_.units.size()) - 1;
  loss_ = {};
  in_step_ = true;

  RETURN_IF_ERROR(stream_.Zero(sums_->data(), sums_->byte_count()));
  RETURN_IF_ERROR(stream_.Zero(maxima_->data(), maxima_->byte_count()));
  RETURN_IF_ERROR(stream_.Zero(squares_->data(), squares_->byte_count()));
  RETURN_IF_ERROR(stream_.Zero(overflow_->data(), overflow_->byte_count()));
  if (micro_batch_count_ == 0) return PostAllUnits();
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
  return kernels::AccumulateExact(
      stream_, gradient, sums_->as<int64_t>() + t.offset, t.element_count,
      exponents_[tensor], overflow_limit_, overflow_->as<int32_t>() + tensor);
}

absl::Status GradientReducer::UnitDone(int unit) {
  if (!in_step_ || ended_count_ >= micro_batch_count_ || unit != next_unit_) {
    return OutOfOrder(
        absl::StrCat("unit ", unit, " done, expected ", next_unit_));
  }
  --next_unit_;
  // Backward need not go on for a step that cannot be committed.
  RETURN_IF_ERROR(comm_.status());
  if (ended_count_ + 1 < micro_batch_count_ || !options_.overlap) {
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(stream_.Record(*unit_events_[unit]));
  PostUnit(unit);
  return absl::OkStatus();
}

absl::Status GradientReducer::EndMicroBatch(const LossSum& loss) {
  if (!in_step_ || ended_count_ >= micro_batch_count_ || next_unit_ != -1) {
    return OutOfOrder("the end of a micro-batch before that of its units");
  }
  loss_.Add(loss);
  ++ended_count_;
  if (ended_count_ < micro_batch_count_) {
    next_unit_ = static_cast<int>(layout_.units.size()) - 1;
    return absl::OkStatus();
  }
  trace_.backward_end = SinceStart();
  return options_.overlap ? absl::OkStatus() : PostAllUnits();
}

absl::Status GradientReducer::PostAllUnits() {
  for (int u = static_cast<int>(layout_.units.size()) - 1; u >= 0; --u) {
    RETURN_IF_ERROR(stream_.Record(*unit_events_[u]));
    PostUnit(u);
  }
  return absl::OkStatus();
}

void GradientReducer::PostUnit(int unit) {
  comm_.Post([this, unit](Communicator& communicator) -> absl::Status {
    RETURN_IF_ERROR(unit_events_[unit]->Synchronize());
    const int first = plan_.first_bucket[unit];
    const int count = plan_.bucket_count[unit];
    absl::Duration start = SinceStart();
    const auto words = [&](int b) {
      return sums_->as<int64_t>() + plan_.buckets[first + b].range.offset;
    };
    // What the ranks' largest elements add up to proves, before anything is
    // sent, which sums fit 32 bits.
    std::vector<int64_t> largest(count);
    if (communicator.world() > 1) {
      for (int b = 0; b < count; ++b) {
        // So that the sum over ranks cannot overflow.
        largest[b] = std::min(
            kNarrowSumLimit,
            LargestMagnitude(words(b),
                             plan_.buckets[first + b].range.element_count));
      }
      RETURN_IF_ERROR(communicator.AllReduceSum(largest.data(), count));
    }
    for (int b = 0; b < count; ++b) {
      const FlatRange& range = plan_.buckets[first + b].range;
      const bool wide = largest[b] >= kNarrowSumLimit;
      int64_t send_count = range.element_count;
      if (!wide && communicator.world() > 1) {
        PackNarrow(words(b), range.element_count);
        send_count = NarrowWordCount(range.element_count);
      }
      RETURN_IF_ERROR(communicator.AllReduceSum(words(b), send_count));
      if (!wide && communicator.world() > 1) {
        UnpackNarrow(words(b), range.element_count);
      }
      const absl::Duration end = SinceStart();
      trace_.buckets.push_back({unit, range, start, end, wide});
      trace_.communication += end - start;
      start = end;
    }
    return absl::OkStatus();
  });
}

absl::Status GradientReducer::RunExposed(CommThread::Task task) {
  const Instant start = clock_.Now();
  RETURN_IF_ERROR(comm_.Run(std::move(task)));
  const absl::Duration took = clock_.Now() - start;
  trace_.exposed += took;
  trace_.communication += took;
  return absl::OkStatus();
}

absl::StatusOr<StepResult> GradientReducer::Commit(const Votes& votes) {
  if (!in_step_ || ended_count_ != micro_batch_count_) {
    return OutOfOrder(absl::StrCat("commit after ", ended_count_, " of ",
                                   micro_batch_count_, " micro-batches"));
  }
  in_step_ = false;
  const Instant waiting_since = clock_.Now();
  RETURN_IF_ERROR(comm_.Wait());
  trace_.exposed += clock_.Now() - waiting_since;

  StepResult result;
  result.tensors.resize(layout_.tensors.size());
  RETURN_IF_ERROR(ReduceMaxima(votes, result));
  RETURN_IF_ERROR(ReduceSums(result));
  trace_.sent_bytes = comm_.sent_bytes() - sent_before_;
  return result;
}

absl::Status GradientReducer::ReduceMaxima(const Votes& votes,
                                           StepResult& result) {
  for (const TensorPiece& p : pieces_) {
    RETURN_IF_ERROR(kernels::MaxExact(
        stream_, sums_->as<int64_t>() + p.range.offset, p.range.element_count,
        maxima_->as<int64_t>() + p.tensor));
  }
  std::vector<int64_t> words(kMaximaWordCount + layout_.tensors.size());
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
  RETURN_IF_ERROR(RunExposed([&words](Communicator& c) {
    return c.AllReduceMax(words.data(), static_cast<int64_t>(words.size()));
  }));

  result.loss_not_finite = words[kLossNotFinite] != 0;
  result.stop = words[kStop] != 0;
  result.checkpoint = words[kCheckpoint] != 0;
  result.plan_version = -words[kMinusPlanVersion];
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
  for (const TensorPiece& p : pieces_) {
    RETURN_IF_ERROR(kernels::AddSquaresExact(
        stream_, sums_->as<int64_t>() + p.range.offset, p.range.element_count,
        squares_->as<int64_t>() + p.tensor * kSquareLimbCount));
  }
  std::vector<int64_t> words(kSumsWordCount +
                             layout_.tensors.size() * kSquareLimbCount);
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
