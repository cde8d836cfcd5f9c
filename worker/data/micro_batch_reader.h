// Reads a rank's micro-batches ahead of the step loop, on its own thread.
//
//   reader thread:  wait for a free buffer -> read a micro-batch -> ready
//   step loop:      Next() -> train on it -> Next() gives the buffer back
//
// Rows of micro-batch m of step s are positions [m, m + 1) x micro_batch_size
// of the step's global batch: a function of the job and s, not of rank or
// world.  A new assignment takes a new reader; nothing else is state.
#ifndef WORKER_DATA_MICRO_BATCH_READER_H_
#define WORKER_DATA_MICRO_BATCH_READER_H_

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/micro_batches.h"
#include "common/mutex.h"
#include "common/sample_order.h"
#include "worker/data/token_source.h"

namespace lockstep {

struct MicroBatch {
  int64_t step = 0;
  int64_t index = 0;  // In the step: 0 to micro-batches of a step.
  // (micro_batch_size, sequence_length + 1).  Valid until the next Next().
  const int32_t* tokens = nullptr;
};

// Next is called from one thread; Cancel from any.
class MicroBatchReader {
 public:
  struct Options {
    int64_t seed = 0;
    SampleOrder order = SampleOrder::kPermuted;
    int64_t global_batch_size = 0;  // Positive multiple of the next.
    int64_t micro_batch_size = 0;   // Rows; positive.
    MicroBatchRange range;          // Which of every step's are this rank's.
    int64_t first_step = 0;
    int64_t end_step = 0;  // The first step that is not read.
    int buffer_count = 4;  // At least 2: one in use, one read ahead.
  };

  // Starts reading.  `source` must outlive the reader.
  //
  // Errors:
  //   InvalidArgument: an option is out of range, or the steps need more
  //     positions than kSampleCountMax.
  static absl::StatusOr<std::unique_ptr<MicroBatchReader>> Create(
      const TokenSource* source, const Options& options);

  // Cancels, and joins the thread: waits for a read that is under way.
  ~MicroBatchReader();

  // The next micro-batch: those of `range` in order, for each step in order.
  // Waits until it is read; how long is the step's wait for data.
  //
  // Errors:
  //   OutOfRange: all steps have been read.
  //   Cancelled: Cancel was called.
  //   Otherwise: reading this micro-batch failed (see TokenSource); the
  //     message names the step.  Every later call returns the same.
  absl::StatusOr<MicroBatch> Next();

  // Makes Next, now and later, return Cancelled; the thread stops reading.
  void Cancel();

 private:
  MicroBatchReader(const TokenSource* source, const Options& options);

  void Run();
  // Waits for a buffer that may be filled; null when cancelled.
  int32_t* WaitForFreeBuffer();
  void Publish(int64_t step, int64_t index, int32_t* tokens);
  void End(absl::Status why);
  absl::Status Fill(int64_t step, int64_t index, int32_t* tokens) const;

  const TokenSource* const source_;
  const Options options_;
  const int64_t row_tokens_;

  Mutex mutex_;
  CondVar changed_;
  std::vector<std::vector<int32_t>> buffers_;  // Owned by turns, see counts.
  std::vector<MicroBatch> batches_ ABSL_GUARDED_BY(mutex_);  // As buffers_.
  // Micro-batches read and handed out so far; buffers are used in turn.
  // taken <= filled <= given_back + buffer_count; taken - given_back is 0 or 1.
  int64_t filled_count_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t taken_count_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t given_back_count_ ABSL_GUARDED_BY(mutex_) = 0;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  // What Next returns after the last filled one.  OK while reading goes on.
  absl::Status end_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;
};

}  // namespace lockstep

#endif  // WORKER_DATA_MICRO_BATCH_READER_H_
