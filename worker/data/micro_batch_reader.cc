#include "worker/data/micro_batch_reader.h"

#include <pthread.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status.h"

namespace lockstep {

absl::StatusOr<std::unique_ptr<MicroBatchReader>> MicroBatchReader::Create(
    const TokenSource* source, const Options& o) {
  LS_CHECK(source != nullptr);
  if (o.micro_batch_size < 1 || o.global_batch_size < 1 ||
      o.global_batch_size % o.micro_batch_size != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch.global_batch_size: expected a positive multiple of "
                     "batch.micro_batch_size=",
                     o.micro_batch_size, ", got ", o.global_batch_size));
  }
  const int64_t micro_batches = o.global_batch_size / o.micro_batch_size;
  if (o.range.first < 0 || o.range.count < 0 ||
      o.range.count > micro_batches - o.range.first) {
    return absl::InvalidArgumentError(absl::StrCat(
        "micro-batch range: expected inside the ", micro_batches,
        " of a step, got ", o.range.count, " from ", o.range.first));
  }
  if (o.first_step < 0 || o.end_step < o.first_step ||
      o.end_step > kSampleCountMax / o.global_batch_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("steps: expected 0 <= first <= end <= ",
                     kSampleCountMax / o.global_batch_size, ", got first ",
                     o.first_step, ", end ", o.end_step));
  }
  if (o.buffer_count < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("buffer_count: expected 2 or more, got ", o.buffer_count));
  }
  return std::unique_ptr<MicroBatchReader>(new MicroBatchReader(source, o));
}

MicroBatchReader::MicroBatchReader(const TokenSource* source,
                                   const Options& options)
    : source_(source),
      options_(options),
      row_tokens_(source->sequence_length() + 1),
      buffers_(options.buffer_count,
               std::vector<int32_t>(options.micro_batch_size * row_tokens_)),
      batches_(options.buffer_count) {
  thread_ = std::thread([this] { Run(); });
}

MicroBatchReader::~MicroBatchReader() {
  Cancel();
  thread_.join();
}

void MicroBatchReader::Cancel() {
  MutexLock lock(&mutex_);
  cancelled_ = true;
  changed_.SignalAll();
}

absl::StatusOr<MicroBatch> MicroBatchReader::Next() {
  MutexLock lock(&mutex_);
  given_back_count_ = taken_count_;
  changed_.SignalAll();
  while (!cancelled_ && taken_count_ == filled_count_ && end_.ok()) {
    changed_.Wait(&mutex_);
  }
  if (cancelled_) {
    return absl::CancelledError("reading of micro-batches was cancelled");
  }
  if (taken_count_ == filled_count_) return end_;
  return batches_[taken_count_++ % options_.buffer_count];
}

int32_t* MicroBatchReader::WaitForFreeBuffer() {
  MutexLock lock(&mutex_);
  while (!cancelled_ &&
         filled_count_ - given_back_count_ == options_.buffer_count) {
    changed_.Wait(&mutex_);
  }
  if (cancelled_) return nullptr;
  return buffers_[filled_count_ % options_.buffer_count].data();
}

void MicroBatchReader::Publish(int64_t step, int64_t index, int32_t* tokens) {
  MutexLock lock(&mutex_);
  batches_[filled_count_ % options_.buffer_count] = {step, index, tokens};
  ++filled_count_;
  changed_.SignalAll();
}

void MicroBatchReader::End(absl::Status why) {
  MutexLock lock(&mutex_);
  end_ = std::move(why);
  changed_.SignalAll();
}

absl::Status MicroBatchReader::Fill(int64_t step, int64_t index,
                                    int32_t* tokens) const {
  const int64_t first =
      step * options_.global_batch_size + index * options_.micro_batch_size;
  for (int64_t row = 0; row < options_.micro_batch_size; ++row) {
    const int64_t sample =
        SampleIndex(options_.seed, options_.order,
                    source_->training_sample_count(), first + row);
    RETURN_IF_ERROR(
        source_->ReadTrainingSample(sample, tokens + row * row_tokens_));
  }
  return absl::OkStatus();
}

void MicroBatchReader::Run() {
  pthread_setname_np(pthread_self(), "data-reader");
  const MicroBatchRange range = options_.range;
  for (int64_t step = options_.first_step;
       range.count > 0 && step < options_.end_step; ++step) {
    for (int64_t m = range.first; m < range.first + range.count; ++m) {
      int32_t* tokens = WaitForFreeBuffer();
      if (tokens == nullptr) return;
      const absl::Status filled = Fill(step, m, tokens);
      if (!filled.ok()) {
        return End(Annotate(filled, absl::StrCat("data of step ", step)));
      }
      Publish(step, m, tokens);
    }
  }
  End(absl::OutOfRangeError(
      absl::StrCat("all steps before ", options_.end_step, " were read")));
}

}  // namespace lockstep
