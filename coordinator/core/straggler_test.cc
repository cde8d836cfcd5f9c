#include "coordinator/core/straggler.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

RankStep Step(int rank, int64_t micro_batches, double wait_ms, double forward,
              double backward, double update) {
  return {.rank = rank,
          .micro_batch_count = micro_batches,
          .data_wait = absl::Milliseconds(wait_ms),
          .forward = absl::Milliseconds(forward),
          .backward = absl::Milliseconds(backward),
          .update = absl::Milliseconds(update)};
}

struct Want {
  int step_count;
  double compute_ms;
  double others_ms;
  double score;
  bool straggler;
  std::string slow_phase;
};

struct Case {
  const char* name;
  int world;
  double threshold;
  std::vector<RankStep> steps;
  std::vector<Want> want;
};

class ScoreRanksTest : public ::testing::TestWithParam<Case> {};

TEST_P(ScoreRanksTest, ScoresAsTheHeaderSays) {
  const Case& c = GetParam();

  const std::vector<RankScore> scores =
      ScoreRanks(c.steps, c.world, c.threshold);

  ASSERT_EQ(scores.size(), c.want.size());
  for (size_t rank = 0; rank < scores.size(); ++rank) {
    SCOPED_TRACE(rank);
    const RankScore& got = scores[rank];
    const Want& want = c.want[rank];
    EXPECT_EQ(got.step_count, want.step_count);
    EXPECT_EQ(got.compute_per_micro_batch, absl::Milliseconds(want.compute_ms));
    EXPECT_EQ(got.median_of_others, absl::Milliseconds(want.others_ms));
    EXPECT_NEAR(got.score, want.score, 1e-12);
    EXPECT_EQ(got.straggler, want.straggler);
    EXPECT_EQ(got.slow_phase, want.slow_phase);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, ScoreRanksTest,
    ::testing::Values(
        Case{"NoSteps",
             2,
             1.2,
             {},
             {{0, 0, 0, 1, false, ""}, {0, 0, 0, 1, false, ""}}},
        Case{"Alone",
             1,
             1.2,
             {Step(0, 2, 1, 4, 6, 1)},
             {{1, 6, 0, 1, false, ""}}},
        Case{"TwiceAsSlowAtBackward",
             3,
             1.5,
             {Step(0, 1, 1, 4, 4, 1), Step(1, 1, 1, 4, 14, 1),
              Step(2, 1, 1, 4, 4, 1)},
             {{1, 10, 15, 10 / 15., false, ""},
              {1, 20, 10, 2, true, "backward"},
              {1, 10, 15, 10 / 15., false, ""}}},
        // Rank 1 ran three times the micro-batches in three times the time.
        Case{"MoreMicroBatchesAreNotSlower",
             2,
             1.2,
             {Step(0, 1, 1, 4, 4, 1), Step(1, 3, 3, 12, 12, 3)},
             {{1, 10, 10, 1, false, ""}, {1, 10, 10, 1, false, ""}}},
        // One step of rank 0 stood still for a second: the median does not
        // care.
        Case{"OneSlowStepIsNoStraggler",
             2,
             1.2,
             {Step(0, 1, 1000, 4, 5, 1), Step(0, 1, 0, 4, 5, 1),
              Step(0, 1, 0, 4, 5, 1), Step(1, 1, 0, 4, 5, 1),
              Step(1, 1, 0, 4, 5, 1), Step(1, 1, 0, 4, 5, 1)},
             {{3, 10, 10, 1, false, ""}, {3, 10, 10, 1, false, ""}}},
        // Of an even number of steps the mean of the middle two.
        Case{"EvenWindow",
             2,
             1.2,
             {Step(0, 1, 0, 10, 0, 0), Step(0, 1, 0, 14, 0, 0),
              Step(1, 1, 0, 10, 0, 0)},
             {{2, 12, 10, 1.2, true, "forward"},
              {1, 10, 12, 10 / 12., false, ""}}},
        // Rank 2 has no micro-batches: neither scored nor one of the others.
        Case{"WithoutMicroBatches",
             3,
             1.2,
             {Step(0, 1, 0, 5, 5, 0), Step(1, 1, 10, 5, 5, 0),
              Step(2, 0, 0, 0, 0, 500)},
             {{1, 10, 20, .5, false, ""},
              {1, 20, 10, 2, true, "data_wait"},
              {0, 0, 15, 1, false, ""}}},
        // A rank that idled in one step of three counts with the other two.
        Case{"IdleSteps",
             2,
             1.2,
             {Step(0, 1, 0, 5, 5, 0), Step(0, 0, 0, 0, 0, 99),
              Step(0, 1, 0, 5, 5, 0), Step(1, 1, 0, 5, 5, 0)},
             {{2, 10, 10, 1, false, ""}, {1, 10, 10, 1, false, ""}}},
        Case{"ThresholdIsReachedExactly",
             2,
             2,
             {Step(0, 1, 0, 0, 0, 20), Step(1, 1, 0, 0, 0, 10)},
             {{1, 20, 10, 2, true, "update"}, {1, 10, 20, .5, false, ""}}},
        // Equally far beyond in two phases: the first is named.
        Case{"EqualPhases",
             2,
             1.2,
             {Step(0, 1, 0, 7, 7, 0), Step(1, 1, 0, 5, 5, 0)},
             {{1, 14, 10, 1.4, true, "forward"},
              {1, 10, 14, 10 / 14., false, ""}}},
        Case{"NothingMeasured",
             2,
             1.2,
             {Step(0, 1, 0, 1, 0, 0), Step(1, 1, 0, 0, 0, 0)},
             {{1, 1, 0, 1, false, ""}, {1, 0, 1, 1, false, ""}}}),
    [](const ::testing::TestParamInfo<Case>& c) { return c.param.name; });

}  // namespace
}  // namespace lockstep
