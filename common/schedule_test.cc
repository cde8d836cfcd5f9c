#include "common/schedule.h"

#include <cmath>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

// What training the reference models used: computed in Python as written there
// (peak 3e-3, minimum a tenth of it, 2 of 8 steps of warm-up, cosine).
TEST(LearningRateTest, GivesTheReferenceValues) {
  const LearningRateSchedule schedule = {.peak = 3e-3,
                                         .minimum = 3e-4,
                                         .decay = Decay::kCosine,
                                         .warmup_steps = 2,
                                         .max_steps = 8};
  const double want[] = {0.0015,
                         0.003,
                         0.003,
                         0.0028191342951089924,
                         0.0023250000000000002,
                         0.0016500000000000002,
                         0.0009750000000000004,
                         0.00048086570489100773};
  for (int step = 0; step < 8; ++step) {
    EXPECT_NEAR(LearningRate(schedule, step), want[step], 4e-16 * want[step])
        << step;
  }
}

TEST(LearningRateTest, RisesDuringWarmUpWhateverTheDecay) {
  for (Decay decay : {Decay::kConstant, Decay::kLinear, Decay::kCosine}) {
    const LearningRateSchedule schedule = {
        .peak = 1, .decay = decay, .warmup_steps = 4, .max_steps = 10};
    EXPECT_EQ(LearningRate(schedule, 0), 0.25);
    EXPECT_EQ(LearningRate(schedule, 2), 0.75);
    EXPECT_EQ(LearningRate(schedule, 3), 1);
    EXPECT_EQ(LearningRate(schedule, 4), 1);
  }
}

TEST(LearningRateTest, FallsToTheMinimumAtMaxStepsAndStays) {
  LearningRateSchedule schedule = {
      .peak = 1, .minimum = 0.5, .decay = Decay::kLinear, .max_steps = 4};
  EXPECT_EQ(LearningRate(schedule, 0), 1);
  EXPECT_EQ(LearningRate(schedule, 1), 0.875);
  EXPECT_EQ(LearningRate(schedule, 3), 0.625);
  EXPECT_EQ(LearningRate(schedule, 4), 0.5);
  EXPECT_EQ(LearningRate(schedule, 400), 0.5);

  schedule.decay = Decay::kCosine;
  EXPECT_EQ(LearningRate(schedule, 0), 1);
  EXPECT_EQ(LearningRate(schedule, 2), 0.75);
  EXPECT_EQ(LearningRate(schedule, 4), 0.5);

  schedule.decay = Decay::kConstant;
  EXPECT_EQ(LearningRate(schedule, 3), 1);
  EXPECT_EQ(LearningRate(schedule, 4), 1);
}

TEST(LearningRateTest, WarmUpMayOutlastTheJob) {
  const LearningRateSchedule schedule = {
      .peak = 1, .warmup_steps = 100, .max_steps = 10};
  EXPECT_EQ(LearningRate(schedule, 9), 0.1);
  const LearningRateSchedule exact = {
      .peak = 1, .warmup_steps = 10, .max_steps = 10};
  EXPECT_EQ(LearningRate(exact, 9), 1);
}

constexpr StepShape kShape = {.global_batch_size = 8, .sequence_length = 16};

int64_t Steps(const TrainingLength& length, int64_t sample_count,
              const StepShape& shape = kShape) {
  const absl::StatusOr<int64_t> steps =
      ResolveStepCount(length, shape, sample_count);
  EXPECT_TRUE(steps.ok()) << steps.status();
  return steps.value_or(-1);
}

TEST(ResolveStepCountTest, StepsAreStepsWhateverTheDataAndBatch) {
  EXPECT_EQ(Steps(TrainSteps{7}, 0), 7);
  EXPECT_EQ(Steps(TrainSteps{kStepCountMax}, 5), kStepCountMax);
}

TEST(ResolveStepCountTest, TokensRoundUpToWholeSteps) {
  EXPECT_EQ(Steps(TrainTokens{1}, 0), 1);
  EXPECT_EQ(Steps(TrainTokens{128}, 0), 1);
  EXPECT_EQ(Steps(TrainTokens{129}, 0), 2);
  EXPECT_EQ(Steps(TrainTokens{int64_t{1} << 47}, 0), kStepCountMax);
}

TEST(ResolveStepCountTest, EpochsRoundUpToWholeSteps) {
  EXPECT_EQ(Steps(TrainEpochs{1}, 8), 1);
  EXPECT_EQ(Steps(TrainEpochs{1}, 9), 2);
  EXPECT_EQ(Steps(TrainEpochs{3}, 9), 4);
  EXPECT_EQ(Steps(TrainEpochs{0.5}, 32), 2);
  EXPECT_EQ(Steps(TrainEpochs{0.51}, 32), 3);
  EXPECT_EQ(Steps(TrainEpochs{1e-300}, 1000), 1);
}

TEST(ResolveStepCountTest, FractionsOfAnEpochAreMeantInDecimal) {
  const StepShape one = {.global_batch_size = 1, .sequence_length = 16};
  // In double 1.1 x 10 is above 11.
  EXPECT_EQ(Steps(TrainEpochs{1.1}, 10, one), 11);
  for (int tenths = 1; tenths <= 1000; ++tenths) {
    for (int64_t tens : {1, 3, 7, 1'000'003}) {
      ASSERT_EQ(Steps(TrainEpochs{tenths / 10.0}, tens * 10, one),
                tenths * tens);
    }
  }
  EXPECT_EQ(Steps(TrainEpochs{1.1000001}, 10, one), 12);
}

TEST(ResolveStepCountTest, WholeEpochsOfManySamplesAreExact) {
  const StepShape large = {.global_batch_size = int64_t{1} << 20,
                           .sequence_length = 1};
  const int64_t samples = (int64_t{1} << 59) + 1;
  EXPECT_EQ(Steps(TrainEpochs{1}, samples, large), (int64_t{1} << 39) + 1);
}

TEST(ResolveStepCountTest, RefusesWhatIsOutOfRangeByItsName) {
  struct Case {
    TrainingLength length;
    StepShape shape;
    int64_t sample_count;
    const char* named;
  };
  const Case cases[] = {
      {TrainSteps{0}, kShape, 1, "schedule.max_steps"},
      {TrainSteps{kStepCountMax + 1}, kShape, 1, "schedule.max_steps"},
      {TrainTokens{0}, kShape, 1, "schedule.max_tokens"},
      {TrainTokens{int64_t{1} << 60}, kShape, 1, "schedule.max_tokens"},
      {TrainTokens{(int64_t{1} << 47) + 1}, kShape, 1, "schedule.max_tokens"},
      {TrainEpochs{0}, kShape, 1, "schedule.epochs"},
      {TrainEpochs{std::nan("")}, kShape, 1, "schedule.epochs"},
      {TrainEpochs{1.1e6}, kShape, 1, "schedule.epochs"},
      {TrainEpochs{1e6}, kShape, int64_t{1} << 62, "schedule.epochs"},
      {TrainEpochs{1}, kShape, 0, "training samples"},
      {TrainSteps{1}, {0, 1}, 1, "batch.global_batch_size"},
      {TrainSteps{1}, {1, 0}, 1, "data.sequence_length"},
  };
  for (const Case& c : cases) {
    const absl::StatusOr<int64_t> steps =
        ResolveStepCount(c.length, c.shape, c.sample_count);
    EXPECT_EQ(steps.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(steps.status().message().find(c.named), std::string::npos)
        << steps.status();
  }
}

}  // namespace
}  // namespace lockstep
