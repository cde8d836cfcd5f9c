// Whatever the split, the bucket size and the timing: the same bits.

#include <cmath>
#include <cstring>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/philox.h"
#include "gtest/gtest.h"
#include "worker/parallel/fake_training.h"

namespace lockstep {
namespace {

uint64_t BitsOf(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

// Everything that must not depend on how the work was done, after each step.
struct StepBits {
  std::vector<int64_t> sums;
  std::vector<int> exponents;
  std::vector<int64_t> maxima;
  std::vector<uint64_t> norms;
  ExactLoss loss;
  uint64_t gradient_norm;

  friend bool operator==(const StepBits&, const StepBits&) = default;
};

struct RunBits {
  std::vector<StepBits> steps;
  std::vector<float> parameters;
  std::vector<UnitHistory> units;

  friend bool operator==(const RunBits&, const RunBits&) = default;
};

RunBits TrainAndCollect(const FakeOptions& options, FakeRank& rank) {
  RunBits bits;
  for (int64_t step = 0; step < options.step_count; ++step) {
    const auto result = rank.Train(step);
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return {};
    StepBits& s = bits.steps.emplace_back();
    s.sums = rank.sums();
    for (const TensorResult& t : result->tensors) {
      s.exponents.push_back(t.exponent);
      s.maxima.push_back(t.max_sum);
      s.norms.push_back(BitsOf(t.norm));
    }
    s.loss = result->loss;
    s.gradient_norm = BitsOf(result->gradient_norm);
  }
  bits.parameters = rank.parameters();
  bits.units = rank.units();
  return bits;
}

// Of rank 0, after checking that all ranks agree.
RunBits RunAll(const FakeOptions& options) {
  std::vector<RunBits> all(options.world());
  ForEachFakeRank(options, [&](int rank, FakeRank& fake) {
    all[rank] = TrainAndCollect(options, fake);
  });
  // Where sums are sharded, those of all ranks together.
  if (ShardsOptimizer(options.zero_stage)) {
    for (size_t step = 0; step < all[0].steps.size(); ++step) {
      std::vector<int64_t> sums(all[0].steps[step].sums.size());
      for (const RunBits& bits : all) {
        for (size_t i = 0; i < sums.size(); ++i) {
          sums[i] += bits.steps[step].sums[i];
        }
      }
      for (RunBits& bits : all) bits.steps[step].sums = sums;
    }
  }
  for (int r = 1; r < options.world(); ++r) {
    EXPECT_TRUE(all[r] == all[0]) << "rank " << r << " differs from rank 0";
  }
  return all[0];
}

FakeOptions OneRank() {
  FakeOptions options;
  options.split = {{0, 1, 2, 3, 4, 5}};
  return options;
}

const RunBits& Expected() {
  static const RunBits bits = RunAll(OneRank());
  return bits;
}

// The oracle: what the sums must be, by the definition.
TEST(SameBitsTest, SumsNormsAndMaximaAreWhatTheDefinitionSays) {
  const Layout layout = FakeLayout();
  std::vector<UnitHistory> units(layout.tensors.size());
  const ExactScale scale = {.micro_batch_count = 6,
                            .nominal_token_count = 6 * 96};
  ASSERT_EQ(Expected().steps.size(), 5u);

  for (int64_t step = 0; step < 5; ++step) {
    const StepBits& got = Expected().steps[step];
    std::vector<int64_t> sums(layout.element_count);
    const auto add = [&](int64_t m, int t, int contribution, int exponent) {
      const auto gradient = FakeGradient(layout, step, m, t, contribution);
      for (size_t i = 0; i < gradient.size(); ++i) {
        sums[layout.tensors[t].offset + i] +=
            std::llrint(std::ldexp(double{gradient[i]}, -exponent));
      }
    };
    double tokens = 0;
    for (int64_t m = 0; m < 6; ++m) tokens += FakeLoss(step, m).token_count;
    long double total = 0;
    for (size_t t = 0; t < layout.tensors.size(); ++t) {
      const int exponent = UnitExponent(units[t], scale);
      ASSERT_EQ(got.exponents[t], exponent) << step << " " << t;
      for (int64_t m = 0; m < 6; ++m) {
        add(m, static_cast<int>(t), 0, exponent);
        if (t == 0) add(m, 0, 1, exponent);
      }
      int64_t max = 0;
      long double squares = 0;
      for (int64_t i = 0; i < layout.tensors[t].element_count; ++i) {
        const int64_t s = sums[layout.tensors[t].offset + i];
        max = std::max(max, std::abs(s));
        squares += static_cast<long double>(s) * s;
      }
      squares = std::ldexp(squares, 2 * exponent);
      total += squares;
      ASSERT_EQ(got.maxima[t], max);
      double norm;
      std::memcpy(&norm, &got.norms[t], sizeof(norm));
      ASSERT_NEAR(norm, static_cast<double>(std::sqrt(squares) / tokens),
                  1e-14 * norm);
      AdvanceUnit(units[t], exponent, max);
    }
    ASSERT_EQ(got.sums, sums) << step;
    double norm;
    std::memcpy(&norm, &got.gradient_norm, sizeof(norm));
    ASSERT_NEAR(norm, static_cast<double>(std::sqrt(total) / tokens),
                1e-14 * norm);
    ExactLoss loss;
    for (int64_t m = 0; m < 6; ++m) loss.Add(FakeLoss(step, m));
    ASSERT_EQ(got.loss, loss);
  }
  EXPECT_EQ(Expected().units, units);
}

TEST(SameBitsTest, AnySplitGivesTheSameBits) {
  const std::vector<std::vector<std::vector<int64_t>>> splits = {
      {{5, 4, 3, 2, 1, 0}},       {{0, 1, 2}, {3, 4, 5}},
      {{0}, {1, 2, 3, 4, 5}},     {{}, {0, 1, 2, 3, 4, 5}},
      {{0, 1, 2}, {3, 4}, {5}},   {{0, 3}, {}, {1, 2, 4, 5}},
      {{0, 1}, {2, 3}, {4}, {5}}, {{}, {}, {0, 1, 2, 3, 4, 5}, {}},
  };
  for (const auto& split : splits) {
    FakeOptions options = OneRank();
    options.split = split;
    EXPECT_TRUE(RunAll(options) == Expected()) << "world " << options.world();
  }
}

TEST(SameBitsTest, AnyBucketSizeWithAndWithoutOverlapGivesTheSameBits) {
  for (const int64_t bucket_bytes : {64, 1 << 10, 5000, 64 << 10, 25 << 20}) {
    for (const bool overlap : {true, false}) {
      for (const int world : {1, 3}) {
        FakeOptions options = OneRank();
        if (world == 3) options.split = {{0, 1, 2}, {}, {3, 4, 5}};
        options.bucket_bytes = bucket_bytes;
        options.overlap = overlap;
        EXPECT_TRUE(RunAll(options) == Expected())
            << bucket_bytes << " " << overlap << " " << world;
      }
    }
  }
}

TEST(SameBitsTest, AnyNumberOfThreadsGivesTheSameBits) {
  FakeOptions options = OneRank();
  options.thread_count = 2;
  EXPECT_TRUE(RunAll(options) == Expected());
}

TEST(SameBitsTest, AnyWayBetweenRanksGivesTheSameBits) {
  for (const GroupKind kind : kProcessGroupKinds) {
    FakeOptions options = OneRank();
    options.kind = kind;
    options.split = {{0, 1, 2}, {3, 4}, {5}};
    for (const int64_t bucket_bytes : {5000, 20'000, 25 << 20}) {
      options.bucket_bytes = bucket_bytes;
      EXPECT_TRUE(RunAll(options) == Expected())
          << NameOf(kind) << " " << bucket_bytes;
    }
  }
}

// Sleeps for random times before and after every call, differently on every
// rank.
class DelayingCommunicator final : public Communicator {
 public:
  DelayingCommunicator(std::unique_ptr<Communicator> inner, uint32_t seed)
      : inner_(std::move(inner)), seed_(seed) {}

  int rank() const override { return inner_->rank(); }
  int world() const override { return inner_->world(); }
  absl::Status AllReduceSum(int64_t* data, int64_t n) override {
    return Delayed([&] { return inner_->AllReduceSum(data, n); });
  }
  absl::Status AllReduceMax(int64_t* data, int64_t n) override {
    return Delayed([&] { return inner_->AllReduceMax(data, n); });
  }
  absl::Status ReduceScatterSum(int64_t* data, int64_t n,
                                int64_t part) override {
    return Delayed([&] { return inner_->ReduceScatterSum(data, n, part); });
  }
  absl::Status AllGather(void* data, int64_t n, int64_t bytes) override {
    return Delayed([&] { return inner_->AllGather(data, n, bytes); });
  }
  absl::Status Broadcast(void* data, int64_t bytes, int root) override {
    return Delayed([&] { return inner_->Broadcast(data, bytes, root); });
  }
  absl::Status Barrier() override {
    return Delayed([&] { return inner_->Barrier(); });
  }
  void Abort(absl::Status why) override { inner_->Abort(std::move(why)); }
  std::optional<int> failed_peer() const override {
    return inner_->failed_peer();
  }
  int64_t sent_bytes() const override { return inner_->sent_bytes(); }

 private:
  template <typename Call>
  absl::Status Delayed(Call call) {
    Sleep();
    const absl::Status status = call();
    Sleep();
    return status;
  }
  void Sleep() {
    const PhiloxBlock dice =
        Philox4x32({call_++, 0, 0, static_cast<uint32_t>(rank())}, {seed_, 0});
    if (dice[0] % 2 == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(dice[1] % 700));
    }
  }

  const std::unique_ptr<Communicator> inner_;
  const uint32_t seed_;
  uint32_t call_ = 0;
};

TEST(SameBitsTest, RandomDelaysGiveTheSameBits) {
  for (uint32_t seed = 0; seed < 5; ++seed) {
    FakeOptions options = OneRank();
    options.split = {{0, 1, 2}, {3}, {4, 5}};
    options.bucket_bytes = 4096;
    auto group = MakeTestGroup(options.kind, 3);
    std::vector<RunBits> all(3);
    ForEachRank(3, [&](int r) {
      FakeRank rank(options, std::make_unique<DelayingCommunicator>(
                                 std::move(group[r]), seed));
      rank.after_unit = [&](int64_t m, int unit) {
        const PhiloxBlock dice = Philox4x32(
            {static_cast<uint32_t>(m), static_cast<uint32_t>(unit), 1, 1},
            {seed, 1});
        std::this_thread::sleep_for(std::chrono::microseconds(dice[0] % 500));
      };
      all[r] = TrainAndCollect(options, rank);
    });
    for (int r = 0; r < 3; ++r) {
      EXPECT_TRUE(all[r] == Expected()) << "seed " << seed << " rank " << r;
    }
  }
}

TEST(SameBitsTest, AnyZeroStageGivesTheSameBits) {
  const std::vector<std::vector<std::vector<int64_t>>> splits = {
      {{0, 1, 2, 3, 4, 5}},
      {{0, 1, 2}, {3, 4, 5}},
      {{0, 3}, {}, {1, 2, 4, 5}},
      {{0, 1}, {2, 3}, {4}, {5}},
      {{}, {}, {}, {0, 1, 2, 3, 4, 5}, {}},
  };
  for (const int stage : {1, 2, 3}) {
    for (const auto& split : splits) {
      for (const int64_t bucket_bytes : {64, 5000, 25 << 20}) {
        for (const bool overlap : {true, false}) {
          FakeOptions options = OneRank();
          options.zero_stage = stage;
          options.split = split;
          options.bucket_bytes = bucket_bytes;
          options.overlap = overlap;
          EXPECT_TRUE(RunAll(options) == Expected())
              << "stage " << stage << " world " << options.world()
              << " bucket_bytes " << bucket_bytes << " overlap " << overlap;
        }
      }
    }
  }
}

TEST(SameBitsTest, AnyZeroStageGivesTheSameBitsBetweenProcesses) {
  for (const GroupKind kind : kProcessGroupKinds) {
    for (const int stage : {1, 2, 3}) {
      FakeOptions options = OneRank();
      options.kind = kind;
      options.zero_stage = stage;
      options.split = {{0, 1, 2}, {3, 4}, {5}};
      options.bucket_bytes = 5000;
      EXPECT_TRUE(RunAll(options) == Expected())
          << NameOf(kind) << " stage " << stage;
    }
  }
}

// What a step leaves behind, even garbage, is not in the next one.
TEST(SameBitsTest, GarbageInTheAccumulatorsBetweenStepsDoesNotMatter) {
  FakeOptions options = OneRank();
  options.split = {{0, 1, 2}, {}, {3, 4, 5}};
  ForEachFakeRank(options, [&](int, FakeRank& rank) {
    for (int64_t step = 0; step < options.step_count; ++step) {
      ASSERT_TRUE(rank.Train(step).ok());
      ASSERT_EQ(rank.sums(), Expected().steps[step].sums) << step;
      auto* sums = const_cast<int64_t*>(rank.reducer().sums().data);
      std::fill_n(sums, rank.layout().element_count, int64_t{0x5a5a5a5a5a5a});
    }
    EXPECT_EQ(rank.parameters(), Expected().parameters);
  });
}

}  // namespace
}  // namespace lockstep
