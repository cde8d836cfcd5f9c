#include "worker/trainer/checkpointer.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/model_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/data/test_files.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Rank 0 of a world of its own; what Settle agrees on is what a test says that
// the other ranks have.
class CheckpointerTest : public ::testing::Test {
 protected:
  CheckpointerTest() {
    model_.vocabulary = 37;
    model_.position_max = 9;
    model_.width = 12;
    model_.layer_count = 1;
    model_.SetPlainHeads(2);
    model_.inner_width = 20;
    layout_ = MakeLayout(model_);
    std::filesystem::create_directory(folder_.Path("staging"));
    checkpointer_ =
        Checkpointer::Create(
            layout_,
            ShardsOf(layout_, MakeReductionPlan(layout_, 1 << 20), 0, 1),
            {.checkpoints_folder = folder_.Path("checkpoints"),
             .staging_folder = folder_.Path("staging"),
             .every_steps = 4},
            RealClock())
            .value();
  }

  void Save(int64_t step_count) {
    for (float* values : checkpointer_->Snapshot()) values[0] = 1;
    CheckpointInfo info;
    info.job = "j";
    info.spec_digest = "spec";
    info.step_count = step_count;
    info.model = model_;
    info.unit_powers.resize(layout_.tensors.size());
    info.ledger = {{1, 1, 0, step_count, {{"w"}}, {{0, 1}}}};
    checkpointer_->Save(std::move(info));
  }

  // What another rank has in a round of agreeing.
  struct Other {
    int64_t written = 0;
    int64_t failed = 0;
    bool is_busy = false;
  };
  // The last is what it has from then on.
  absl::Status SettleWith(const std::vector<Other>& rounds) {
    round_count_ = 0;
    progress_count_ = 0;
    return checkpointer_->Settle(
        [&](int64_t* words, int64_t count) {
          EXPECT_EQ(count, 3);
          const Other& other =
              rounds[std::min<size_t>(round_count_++, rounds.size() - 1)];
          words[0] = std::max(words[0], -other.written);
          words[1] = std::max(words[1], other.failed);
          words[2] = std::max(words[2], int64_t{other.is_busy});
          return absl::OkStatus();
        },
        [&] {
          ++progress_count_;
          return progress_status_;
        });
  }

  std::vector<int64_t> Complete() {
    return ListCheckpoints(folder_.Path("checkpoints")).value();
  }
  bool StagingIsEmpty() {
    return std::filesystem::is_empty(folder_.Path("staging"));
  }

  TestFolder folder_;
  ModelConfig model_;
  Layout layout_;
  std::unique_ptr<Checkpointer> checkpointer_;
  size_t round_count_ = 0;
  int progress_count_ = 0;
  absl::Status progress_status_;
};

TEST_F(CheckpointerTest, SettlesAtOnceWhenNothingIsUnderWay) {
  ASSERT_TRUE(SettleWith({{}}).ok());
  EXPECT_EQ(round_count_, 1u);
}

TEST_F(CheckpointerTest, SettlesOnceEveryRankHasWrittenAndItIsComplete) {
  Save(4);
  ASSERT_TRUE(
      SettleWith({{0, 0, true}, {0, 0, true}, {0, 0, true}, {4, 0, false}})
          .ok());
  EXPECT_GE(round_count_, 4u);
  // A rank that waits for others goes on.
  EXPECT_GE(progress_count_, 3);
  EXPECT_THAT(Complete(), ElementsAre(4));
  EXPECT_EQ(checkpointer_->complete_step_count(), 4);
  EXPECT_TRUE(StagingIsEmpty());
}

TEST_F(CheckpointerTest, WaitsForWhatAnotherRankStillHasToDo) {
  // As a rank other than 0 does for the commit.
  ASSERT_TRUE(SettleWith({{0, 0, true}, {0, 0, true}, {}}).ok());
  EXPECT_EQ(round_count_, 3u);
}

TEST_F(CheckpointerTest, SettlesWithoutAPartThatCouldNotBeWritten) {
  Save(4);
  ASSERT_TRUE(SettleWith({{0, 0, true}, {0, 4, false}}).ok());
  EXPECT_THAT(Complete(), IsEmpty());
  EXPECT_EQ(checkpointer_->complete_step_count(), 0);
  EXPECT_TRUE(StagingIsEmpty());

  // The next one is another try.
  Save(8);
  ASSERT_TRUE(SettleWith({{8, 4, false}}).ok());
  EXPECT_THAT(Complete(), ElementsAre(8));
  EXPECT_EQ(checkpointer_->complete_step_count(), 8);
}

TEST_F(CheckpointerTest, AnErrorEndsTheWait) {
  Save(4);
  progress_status_ = absl::CancelledError("released");
  EXPECT_EQ(SettleWith({{0, 0, true}}), progress_status_);
  EXPECT_EQ(round_count_, 0u);

  progress_status_ = absl::OkStatus();
  const absl::Status lost = absl::UnavailableError("rank 1 is gone");
  EXPECT_EQ(checkpointer_->Settle([&](int64_t*, int64_t) { return lost; },
                                  [] { return absl::OkStatus(); }),
            lost);
}

}  // namespace
}  // namespace lockstep
