#include "worker/parallel/gradient_reducer.h"

#include <atomic>
#include <cmath>
#include <limits>
#include <thread>

#include "absl/time/clock.h"
#include "common/traffic_plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/parallel/fake_training.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

FakeOptions ThreeRanks() {
  FakeOptions options;
  options.split = {{0, 1, 2}, {}, {3, 4, 5}};
  options.bucket_bytes = 4096;
  return options;
}

// A bad number on one rank is known to all before anything has changed, and the
// next step starts its units anew.
void ExpectSkipped(const FakeOptions& options,
                   const std::function<void(FakeRank&)>& tamper, bool gradient,
                   bool loss) {
  ForEachFakeRank(options, [&](int, FakeRank& rank) {
    tamper(rank);
    ASSERT_TRUE(rank.Train(0).ok());
    const auto before = rank.parameters();
    const auto exponents_before = rank.units();

    const auto result = rank.Train(1);

    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->gradient_overflow, gradient);
    EXPECT_EQ(result->loss_not_finite, loss);
    EXPECT_TRUE(result->skipped());
    EXPECT_EQ(rank.parameters(), before);
    EXPECT_EQ(rank.optimizer().update_count(), 1);
    EXPECT_NE(rank.units(), exponents_before);
    for (const UnitHistory& u : rank.units()) EXPECT_EQ(u, UnitHistory());

    const auto next = rank.Train(2);
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_FALSE(next->skipped());
    EXPECT_NE(rank.parameters(), before);
    EXPECT_EQ(rank.optimizer().update_count(), 2);
  });
}

// At every ZeRO stage.
void ExpectSkipped(const std::function<void(FakeRank&)>& tamper, bool gradient,
                   bool loss) {
  for (const int stage : {0, 1, 2, 3}) {
    FakeOptions options = ThreeRanks();
    options.zero_stage = stage;
    ExpectSkipped(options, tamper, gradient, loss);
  }
}

TEST(GradientReducerTest, ANumberThatIsNotFiniteSkipsTheStepEverywhere) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity(), std::nanf("")}) {
    ExpectSkipped(
        [bad](FakeRank& rank) {
          rank.tamper = [bad](int64_t step, int64_t m, int tensor, int,
                              std::vector<float>& gradient) {
            if (step == 1 && m == 4 && tensor == 7) gradient.back() = bad;
          };
        },
        /*gradient=*/true, /*loss=*/false);
  }
}

TEST(GradientReducerTest, AnElementTooLargeForItsUnitSkipsTheStepEverywhere) {
  ExpectSkipped(
      [](FakeRank& rank) {
        rank.tamper = [](int64_t step, int64_t m, int tensor, int,
                         std::vector<float>& gradient) {
          if (step == 1 && m == 0 && tensor == 3) gradient[0] *= 1e15f;
        };
      },
      /*gradient=*/true, /*loss=*/false);
}

TEST(GradientReducerTest, ALossThatIsNotFiniteSkipsTheStepEverywhere) {
  ExpectSkipped(
      [](FakeRank& rank) {
        rank.tamper_loss = [](int64_t step, int64_t m, LossSum& loss) {
          if (step == 1 && m == 5) loss.nats = std::nan("");
        };
      },
      /*gradient=*/false, /*loss=*/true);
}

// A spike within range is no overflow: it trains, and its unit is as fine as
// before.
TEST(GradientReducerTest, ASpikeOfAMillionIsSummedExactly) {
  ForEachFakeRank(ThreeRanks(), [&](int, FakeRank& rank) {
    rank.tamper = [](int64_t step, int64_t, int, int,
                     std::vector<float>& gradient) {
      if (step == 1) {
        for (float& g : gradient) g *= 1e6f;
      }
    };
    ASSERT_TRUE(rank.Train(0).ok());
    const auto result = rank.Train(1);
    ASSERT_TRUE(result.ok());
    EXPECT_FALSE(result->skipped());
    const auto after = rank.Train(2);
    ASSERT_TRUE(after.ok());
    for (size_t t = 0; t < after->tensors.size(); ++t) {
      EXPECT_EQ(after->tensors[t].exponent, result->tensors[t].exponent);
    }
  });
}

TEST(GradientReducerTest, VotesOfOneRankReachAllAndTheLeastPlanWins) {
  ForEachFakeRank(ThreeRanks(), [&](int r, FakeRank& rank) {
    const auto none = rank.RunStep(0, {.plan_version = 7 + r});
    ASSERT_TRUE(none.ok());
    EXPECT_FALSE(none->stop);
    EXPECT_FALSE(none->checkpoint);
    EXPECT_EQ(none->plan_version, 7);

    const auto some = rank.RunStep(
        1, {.stop = r == 1, .checkpoint = r == 2, .plan_version = 9 - r});
    ASSERT_TRUE(some.ok());
    EXPECT_TRUE(some->stop);
    EXPECT_TRUE(some->checkpoint);
    EXPECT_EQ(some->plan_version, 7);
  });
}

TEST(GradientReducerTest, MicroBatchesRunTwiceOrNotAtAllAreRefusedByAll) {
  // The job has six, these ranks run five.
  FakeOptions options = ThreeRanks();
  ForEachFakeRank(options, [&](int r, FakeRank& rank) {
    const std::vector<int> exponents(rank.layout().tensors.size(), -30);
    GradientReducer& reducer = rank.reducer();
    const int64_t count = r == 0 ? 2 : r == 1 ? 0 : 3;
    ASSERT_TRUE(reducer.BeginStep(exponents, count).ok());
    for (int64_t m = 0; m < count; ++m) {
      for (int u = static_cast<int>(rank.layout().units.size()) - 1; u >= 0;
           --u) {
        ASSERT_TRUE(reducer.UnitDone(u).ok());
      }
      ASSERT_TRUE(reducer.EndMicroBatch({.nats = 1, .token_count = 1}).ok());
    }

    const auto result = reducer.Commit({});

    EXPECT_EQ(result.status().code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(result.status().message()),
                HasSubstr("ran 5 micro-batches in this step, expected 6"));
  });
}

TEST(GradientReducerTest, AStepInWhichNothingCountsIsSkippedByAll) {
  ForEachFakeRank(ThreeRanks(), [&](int, FakeRank& rank) {
    ASSERT_TRUE(rank.Train(0).ok());
    const auto before = rank.parameters();
    rank.tamper_loss = [](int64_t step, int64_t, LossSum& loss) {
      if (step == 1) loss = {};
    };

    const auto result = rank.Train(1);

    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(result->nothing_counts);
    EXPECT_TRUE(result->skipped());
    EXPECT_EQ(rank.parameters(), before);
    const auto next = rank.Train(2);
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_FALSE(next->skipped());
    EXPECT_NE(rank.parameters(), before);
  });
}

TEST(GradientReducerTest, CallsOutOfOrderAreRefused) {
  FakeOptions options;
  ForEachFakeRank(options, [&](int, FakeRank& rank) {
    GradientReducer& reducer = rank.reducer();
    const std::vector<int> exponents(rank.layout().tensors.size(), -30);
    const int last = static_cast<int>(rank.layout().units.size()) - 1;
    const std::vector<float> zeros(100'000);
    const auto internal = [](const absl::Status& status) {
      return status.code() == absl::StatusCode::kInternal;
    };

    EXPECT_TRUE(internal(reducer.Contribute(0, zeros.data())));
    EXPECT_TRUE(internal(reducer.Commit({}).status()));
    ASSERT_TRUE(reducer.BeginStep(exponents, 1).ok());
    EXPECT_TRUE(internal(reducer.UnitDone(0)));
    ASSERT_TRUE(reducer.UnitDone(last).ok());
    EXPECT_TRUE(internal(reducer.UnitDone(last)));
    const int head_tensor = rank.layout().units[last].first_tensor;
    EXPECT_TRUE(internal(reducer.Contribute(head_tensor, zeros.data())));
    EXPECT_TRUE(internal(reducer.EndMicroBatch({})));
    EXPECT_TRUE(internal(reducer.Commit({}).status()));
  });
}

TEST(GradientReducerTest, OptionsOutOfRangeAreRefused) {
  auto device = *kernels::CreateCpuDevice(1);
  auto stream = *device->CreateStream();
  CommThread comm(std::move(MakeTestGroup(GroupKind::kLoopback, 1)[0]));
  const auto code = [&](const ReducerOptions& options) {
    return GradientReducer::Create(FakeLayout(), options, *stream, comm,
                                   RealClock())
        .status()
        .code();
  };

  EXPECT_EQ(code({}), absl::StatusCode::kOk);
  EXPECT_EQ(code({.zero_stage = 4}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.zero_stage = -1}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.bucket_bytes = 63}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.scale = {.micro_batch_count = 0}}),
            absl::StatusCode::kInvalidArgument);
}

TEST(GradientReducerTest, EqualPlansCompareEqual) {
  ForEachFakeRank(ThreeRanks(), [&](int, FakeRank& rank) {
    EXPECT_EQ(rank.reducer().ComparePlans().value(), std::nullopt);
  });
}

TEST(GradientReducerTest, ADifferentPlanIsNamedOnEveryRank) {
  auto group = MakeTestGroup(GroupKind::kLoopback, 3);
  ForEachRank(3, [&](int r) {
    FakeOptions options = ThreeRanks();
    if (r == 2) options.bucket_bytes *= 2;
    FakeRank rank(options, std::move(group[r]));

    const std::optional<PlanDifference> found =
        rank.reducer().ComparePlans().value();

    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->rank, 2);
    ASSERT_THAT(found->parts, SizeIs(1));
    EXPECT_STREQ(PlanDigest::kPartNames[found->parts[0]], "buckets or batch");
  });
  auto staged = MakeTestGroup(GroupKind::kLoopback, 3);
  ForEachRank(3, [&](int r) {
    FakeOptions options = ThreeRanks();
    if (r == 1) options.zero_stage = 2;
    FakeRank rank(options, std::move(staged[r]));
    const std::optional<PlanDifference> found =
        rank.reducer().ComparePlans().value();
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->rank, 1);
    ASSERT_THAT(found->parts, SizeIs(1));
    EXPECT_STREQ(PlanDigest::kPartNames[found->parts[0]],
                 "the ZeRO stage or the split of micro-batches");
  });
}

TEST(GradientReducerTest, AnAbortInMidStepEndsEveryRank) {
  for (const GroupKind kind :
       {GroupKind::kLoopback, GroupKind::kGloo, GroupKind::kSharedMemory})
    for (const int stage : {0, 1, 2, 3}) {
      FakeOptions options = ThreeRanks();
      options.kind = kind;
      options.zero_stage = stage;
      const absl::Status why = absl::CancelledError("cancelled by the user");
      ForEachFakeRank(options, [&](int r, FakeRank& rank) {
        std::thread aborter;
        if (r == 0) {
          // In the middle of its last backward, with reductions under way.
          rank.after_unit = [&](int64_t m, int unit) {
            if (m != 2 || unit != 2) return;
            aborter = std::thread([&] { rank.comm().Abort(why); });
            aborter.join();
          };
        }
        const absl::Time start = absl::Now();

        const absl::Status status = rank.Train(0).status();

        EXPECT_LT(absl::Now() - start, absl::Seconds(10));
        if (r == 0) {
          EXPECT_EQ(status, why);
        } else {
          EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
        }
        EXPECT_EQ(rank.optimizer().update_count(), 0);
        EXPECT_FALSE(rank.Train(0).ok());
      });
    }
}

// Lets backward go on only once the reduction of a unit has ended: without
// overlap this would wait for ever.
TEST(GradientReducerTest, BucketsAreReducedWhileBackwardGoesOn) {
  FakeOptions options = ThreeRanks();
  ForEachFakeRank(options, [&](int r, FakeRank& rank) {
    const int last = static_cast<int>(rank.layout().units.size()) - 1;
    rank.after_unit = [&](int64_t m, int unit) {
      const int64_t last_of_rank = r == 0 ? 2 : 5;
      if (m == last_of_rank && unit == last) {
        EXPECT_TRUE(rank.comm().Wait().ok());
      }
    };

    ASSERT_TRUE(rank.Train(0).ok());

    const StepTrace& trace = rank.reducer().trace();
    ASSERT_EQ(trace.buckets.size(), rank.reducer().plan().buckets.size());
    absl::Duration previous_end, communication;
    for (size_t i = 0; i < trace.buckets.size(); ++i) {
      const BucketTrace& b = trace.buckets[i];
      EXPECT_EQ(b.unit, rank.reducer().plan().buckets[i].unit);
      EXPECT_EQ(b.range, rank.reducer().plan().buckets[i].range);
      EXPECT_LE(previous_end, b.start);
      EXPECT_LE(b.start, b.end);
      previous_end = b.end;
      communication += b.end - b.start;
    }
    EXPECT_GE(trace.communication, communication);
    EXPECT_GT(trace.exposed, absl::ZeroDuration());
    if (r == 1) {
      EXPECT_EQ(trace.backward_end, absl::ZeroDuration());
    } else {
      EXPECT_LT(trace.buckets[0].end, trace.backward_end);
    }
  });
}

TEST(GradientReducerTest, WithoutOverlapReductionsStartAfterBackward) {
  FakeOptions options = ThreeRanks();
  options.overlap = false;
  ForEachFakeRank(options, [&](int, FakeRank& rank) {
    ASSERT_TRUE(rank.Train(0).ok());
    const StepTrace& trace = rank.reducer().trace();
    EXPECT_GE(trace.buckets[0].start, trace.backward_end);
  });
}

TEST(GradientReducerTest, SentBytesAreThePlans) {
  const Layout layout = FakeLayout();
  // A spike is too large for 32 bits.
  for (const float spike : {1.0f, 1e6f}) {
    ForEachFakeRank(ThreeRanks(), [&](int r, FakeRank& rank) {
      rank.tamper = [&](int64_t step, int64_t, int, int,
                        std::vector<float>& gradient) {
        if (step != 1) return;
        for (float& g : gradient) g *= spike;
      };
      ASSERT_TRUE(rank.Train(0).ok());
      ASSERT_TRUE(rank.Train(1).ok());
      const StepTrace& trace = rank.reducer().trace();
      for (const BucketTrace& bucket : trace.buckets) {
        EXPECT_EQ(bucket.wide, spike > 1);
      }
      const TrafficPlan plan = PlanTraffic(
          layout, {.rank = r,
                   .world = 3,
                   .bucket_elements = ThreeRanks().bucket_bytes / 4});
      EXPECT_EQ(trace.sent_bytes,
                plan.commit_bytes + (spike > 1 ? plan.wide_reduction_bytes
                                               : plan.reduction_bytes))
          << spike;
    });
  }
}

}  // namespace
}  // namespace lockstep
