#include "worker/data/micro_batch_reader.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/data/test_files.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr int64_t kLength = 4;
constexpr int64_t kSamples = 50;

// Samples do not overlap but for one token: sample i begins with token i.
std::unique_ptr<TokenSource> MakeSource(const TestFolder& folder) {
  std::string data;
  for (int64_t i = 0; i <= kSamples; ++i) {
    data += static_cast<char>(i);
    if (i < kSamples) data += std::string(kLength - 1, '\xff');
  }
  TokenSourceOptions options;
  options.files = {folder.Write("data", data)};
  options.vocabulary = 256;
  options.sequence_length = kLength;
  options.stride = kLength;
  absl::StatusOr<std::unique_ptr<TokenSource>> source =
      TokenSource::Open(options);
  EXPECT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->training_sample_count(), kSamples);
  return *std::move(source);
}

MicroBatchReader::Options Options(MicroBatchRange range) {
  MicroBatchReader::Options options;
  options.seed = 3;
  options.global_batch_size = 16;
  options.micro_batch_size = 2;
  options.range = range;
  options.end_step = 20;
  return options;
}

std::unique_ptr<MicroBatchReader> Reader(
    const TokenSource& source, const MicroBatchReader::Options& options) {
  absl::StatusOr<std::unique_ptr<MicroBatchReader>> reader =
      MicroBatchReader::Create(&source, options);
  EXPECT_TRUE(reader.ok()) << reader.status();
  return *std::move(reader);
}

// First tokens of the rows of each micro-batch, by (step, index).
using Rows = std::map<std::pair<int64_t, int64_t>, std::vector<int32_t>>;

Rows ReadAll(const TokenSource& source,
             const MicroBatchReader::Options& options) {
  const auto reader = Reader(source, options);
  Rows rows;
  while (true) {
    const absl::StatusOr<MicroBatch> batch = reader->Next();
    if (!batch.ok()) {
      EXPECT_EQ(batch.status().code(), absl::StatusCode::kOutOfRange)
          << batch.status();
      return rows;
    }
    std::vector<int32_t> first;
    for (int64_t row = 0; row < options.micro_batch_size; ++row) {
      first.push_back(batch->tokens[row * (kLength + 1)]);
      EXPECT_EQ(batch->tokens[row * (kLength + 1) + 1], 255);
    }
    EXPECT_TRUE(
        rows.emplace(std::pair(batch->step, batch->index), first).second);
  }
}

bool ReaderThreadRuns() {
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;  // Stays empty when the thread ends meanwhile.
    std::ifstream in(task.path() / "comm");
    std::getline(in, name);
    if (name == "data-reader") return true;
  }
  return false;
}

TEST(MicroBatchReaderTest, DeliversTheSamplesOfEachPosition) {
  TestFolder folder;
  const auto source = MakeSource(folder);
  const Rows rows = ReadAll(*source, Options({0, 8}));
  ASSERT_EQ(rows.size(), 20u * 8);
  for (const auto& [place, first] : rows) {
    const auto [step, index] = place;
    for (int64_t row = 0; row < 2; ++row) {
      EXPECT_EQ(first[row], SampleIndex(3, SampleOrder::kPermuted, kSamples,
                                        step * 16 + index * 2 + row));
    }
  }
}

TEST(MicroBatchReaderTest, AnySplitOverRanksGivesTheSameRows) {
  TestFolder folder;
  const auto source = MakeSource(folder);
  const Rows whole = ReadAll(*source, Options({0, 8}));
  for (int world : {2, 3, 9}) {
    Rows joined;
    for (int rank = 0; rank < world; ++rank) {
      joined.merge(ReadAll(*source, Options(MicroBatchesOf(8, rank, world))));
    }
    EXPECT_EQ(joined, whole) << world;
  }
}

TEST(MicroBatchReaderTest, StartsAtAnyStepWithoutReplay) {
  TestFolder folder;
  const auto source = MakeSource(folder);
  Rows whole = ReadAll(*source, Options({0, 8}));
  MicroBatchReader::Options options = Options({0, 8});
  options.first_step = 13;
  const Rows late = ReadAll(*source, options);
  EXPECT_EQ(late.size(), 7u * 8);
  for (const auto& [place, first] : late) EXPECT_EQ(whole[place], first);
}

TEST(MicroBatchReaderTest, ABufferStaysAsItIsUntilTheNextCall) {
  TestFolder folder;
  const auto source = MakeSource(folder);
  MicroBatchReader::Options options = Options({0, 8});
  options.order = SampleOrder::kSequential;
  options.buffer_count = 2;
  const auto reader = Reader(*source, options);
  for (int64_t i = 0; i < 20 * 8; ++i) {
    const absl::StatusOr<MicroBatch> batch = reader->Next();
    ASSERT_TRUE(batch.ok());
    // The reader would be done with everything it may touch by then.
    if (i % 40 == 0) std::this_thread::yield();
    EXPECT_EQ(batch->tokens[0], i * 2 % kSamples);
    EXPECT_EQ(batch->tokens[kLength + 1], (i * 2 + 1) % kSamples);
  }
  EXPECT_EQ(reader->Next().status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(reader->Next().status().code(), absl::StatusCode::kOutOfRange);
}

TEST(MicroBatchReaderTest, ReadsNoFurtherAheadThanItsBuffers) {
  TestFolder folder;
  const auto source = MakeSource(folder);
  MicroBatchReader::Options options = Options({0, 8});
  options.order = SampleOrder::kSequential;
  options.buffer_count = 3;
  const auto reader = Reader(*source, options);
  ASSERT_TRUE(reader->Next().ok());
  ASSERT_TRUE(reader->Next().ok());
  ASSERT_TRUE(reader->Next().ok());

  // Two micro-batches may have been read ahead of the third, which is in use;
  // the sixth cannot have been, and now it is cut off.
  std::filesystem::resize_file(folder.Path("data"), 2 * 5 * kLength);

  absl::StatusOr<MicroBatch> batch = reader->Next();
  int more = 0;
  for (; batch.ok(); batch = reader->Next()) ++more;
  EXPECT_LE(more, 2);
  EXPECT_EQ(batch.status().code(), absl::StatusCode::kDataLoss);
}

TEST(MicroBatchReaderTest, AnErrorComesAfterWhatWasReadBeforeItAndStays) {
  TestFolder folder;
  const auto source = MakeSource(folder);
  // Cut inside sample 9: micro-batches 0 to 3 are whole.
  std::filesystem::resize_file(folder.Path("data"), 9 * kLength + 3);
  MicroBatchReader::Options options = Options({0, 8});
  options.order = SampleOrder::kSequential;
  options.buffer_count = 8;
  const auto reader = Reader(*source, options);
  // It reads ahead, by itself, until the error ends it.  (The kernel's list of
  // threads shows it under its creator's name until it has begun.)
  absl::StatusOr<MicroBatch> batch = reader->Next();
  while (ReaderThreadRuns()) std::this_thread::yield();
  for (int i = 0; i < 4; ++i, batch = reader->Next()) {
    ASSERT_TRUE(batch.ok()) << i << batch.status();
    EXPECT_EQ(batch->tokens[0], 2 * i);
  }
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = batch.status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(status.message(), HasSubstr("data of step 0: "));
    EXPECT_THAT(status.message(), HasSubstr(folder.Path("data")));
    batch = reader->Next();
  }
}

TEST(MicroBatchReaderTest, CancelEndsAWaitingCallAndEveryLaterOne) {
  TestFolder folder;
  const auto source = MakeSource(folder);
  const auto reader = Reader(*source, Options({0, 8}));
  ASSERT_TRUE(reader->Next().ok());
  // Loops until the cancellation, wherever it finds it.
  std::thread consumer([&] {
    while (true) {
      const absl::StatusOr<MicroBatch> batch = reader->Next();
      if (batch.ok()) continue;
      if (batch.status().code() == absl::StatusCode::kOutOfRange) continue;
      EXPECT_EQ(batch.status().code(), absl::StatusCode::kCancelled);
      return;
    }
  });
  reader->Cancel();
  consumer.join();
  EXPECT_EQ(reader->Next().status().code(), absl::StatusCode::kCancelled);
}

TEST(MicroBatchReaderTest, IsDestroyedWhileItsBuffersAreFull) {
  TestFolder folder;
  const auto source = MakeSource(folder);
  for (int taken : {0, 1, 5}) {
    const auto reader = Reader(*source, Options({0, 8}));
    for (int i = 0; i < taken; ++i) ASSERT_TRUE(reader->Next().ok());
  }
}

TEST(MicroBatchReaderTest, ARankWithoutMicroBatchesReadsNothing) {
  TestFolder folder;
  const auto source = MakeSource(folder);
  EXPECT_TRUE(ReadAll(*source, Options({8, 0})).empty());
}

TEST(MicroBatchReaderTest, ItsThreadHasAName) {
  TestFolder folder;
  const auto source = MakeSource(folder);
  const auto reader = Reader(*source, Options({0, 8}));
  ASSERT_TRUE(reader->Next().ok());  // The thread has begun.
  EXPECT_TRUE(ReaderThreadRuns());
}

TEST(MicroBatchReaderTest, RefusesOptionsOutOfRange) {
  TestFolder folder;
  const auto source = MakeSource(folder);
  const auto refused = [&](const MicroBatchReader::Options& options) {
    return MicroBatchReader::Create(source.get(), options).status();
  };
  MicroBatchReader::Options options = Options({0, 8});
  options.micro_batch_size = 3;
  EXPECT_THAT(refused(options).message(), HasSubstr("batch.global_batch_size"));
  EXPECT_THAT(refused(Options({1, 8})).message(), HasSubstr("micro-batch"));
  options = Options({0, 8});
  options.end_step = kSampleCountMax / 16 + 1;
  EXPECT_THAT(refused(options).message(), HasSubstr("steps"));
  options = Options({0, 8});
  options.buffer_count = 1;
  EXPECT_THAT(refused(options).message(), HasSubstr("buffer_count"));
}

}  // namespace
}  // namespace lockstep
