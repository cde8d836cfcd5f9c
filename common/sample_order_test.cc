#include "common/sample_order.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr SampleOrder kPermuted = SampleOrder::kPermuted;

std::vector<int64_t> Epoch(int64_t seed, int64_t sample_count, int64_t epoch) {
  std::vector<int64_t> samples(sample_count);
  for (int64_t i = 0; i < sample_count; ++i) {
    samples[i] =
        SampleIndex(seed, kPermuted, sample_count, epoch * sample_count + i);
  }
  return samples;
}

TEST(SampleOrderTest, EveryEpochHasEverySampleOnce) {
  std::vector<int64_t> sizes(70);
  std::iota(sizes.begin(), sizes.end(), 1);
  for (int64_t size : {255, 256, 257, 1000, 1023, 1024, 1025, 4097, 20'000}) {
    sizes.push_back(size);
  }
  for (int64_t size : sizes) {
    for (int64_t epoch : {0, 1, 5}) {
      std::vector<bool> seen(size);
      for (int64_t sample : Epoch(7, size, epoch)) {
        ASSERT_GE(sample, 0);
        ASSERT_LT(sample, size);
        ASSERT_FALSE(seen[sample]) << "size " << size << " sample " << sample;
        seen[sample] = true;
      }
    }
  }
}

TEST(SampleOrderTest, DiffersByEpochAndSeed) {
  std::set<std::vector<int64_t>> orders;
  for (int64_t seed : {int64_t{0}, int64_t{1}, int64_t{1} << 40}) {
    for (int64_t epoch :
         {int64_t{0}, int64_t{1}, int64_t{1} << 32, int64_t{1} << 50}) {
      orders.insert(Epoch(seed, 100, epoch));
    }
  }
  EXPECT_EQ(orders.size(), 3u * 4);
}

TEST(SampleOrderTest, SequentialRepeatsTheDataAsItStands) {
  for (int64_t g = 0; g < 25; ++g) {
    EXPECT_EQ(SampleIndex(3, SampleOrder::kSequential, 10, g), g % 10);
  }
}

// Ten samples, steps of four: step 2 ends epoch 0 with two samples and begins
// epoch 1 with two.
TEST(SampleOrderTest, AnEpochMayEndInsideAStep) {
  std::multiset<int64_t> first_five_steps;
  for (int64_t g = 0; g < 5 * 4; ++g) {
    first_five_steps.insert(SampleIndex(1, kPermuted, 10, g));
  }
  for (int64_t sample = 0; sample < 10; ++sample) {
    EXPECT_EQ(first_five_steps.count(sample), 2u);
  }
  const std::vector<int64_t> epoch1 = Epoch(1, 10, 1);
  EXPECT_EQ(SampleIndex(1, kPermuted, 10, 2 * 4 + 2), epoch1[0]);
  EXPECT_EQ(SampleIndex(1, kPermuted, 10, 2 * 4 + 3), epoch1[1]);
}

TEST(SampleOrderTest, ServesTheLargestSizes) {
  const int64_t size = kSampleCountMax;
  std::set<int64_t> seen;
  for (int64_t i = 0; i < 1000; ++i) {
    const int64_t sample = SampleIndex(1, kPermuted, size, i);
    EXPECT_GE(sample, 0);
    EXPECT_LT(sample, size);
    seen.insert(sample);
  }
  EXPECT_EQ(seen.size(), 1000u);
  // The last positions of large and of tiny data sets.
  EXPECT_LT(SampleIndex(1, kPermuted, size, size - 1), size);
  EXPECT_EQ(SampleIndex(1, kPermuted, 1, size - 1), 0);
  EXPECT_NE(SampleIndex(1, kPermuted, 2, size - 1),
            SampleIndex(1, kPermuted, 2, size - 2));
}

// The order is part of a job's bits: these never change.
TEST(SampleOrderTest, OrdersArePinned) {
  EXPECT_EQ(Epoch(0, 10, 0),
            (std::vector<int64_t>{3, 6, 5, 9, 0, 1, 7, 8, 4, 2}));
  EXPECT_EQ(Epoch(0, 10, 1),
            (std::vector<int64_t>{0, 9, 1, 2, 5, 4, 3, 6, 8, 7}));
  EXPECT_EQ(Epoch(42, 5, 3), (std::vector<int64_t>{0, 3, 4, 1, 2}));
  EXPECT_EQ(SampleIndex(42, kPermuted, int64_t{1} << 40, 123'456'789),
            268'399'050'670);
  EXPECT_EQ(SampleIndex(42, kPermuted, 1000, (int64_t{1} << 61) + 17), 484);
}

// Chi-square statistics of counts against equal expectation.
template <typename Counts>
double ChiSquare(const Counts& counts, double expected) {
  double sum = 0;
  for (const auto& [key, count] : counts) {
    sum += (count - expected) * (count - expected) / expected;
  }
  return sum;
}

// With k degrees of freedom the statistic has mean k and variance 2k; by the
// Laurent-Massart bound it exceeds k + 2 sqrt(k t) + 2 t with probability below
// e^-t.  t = 20: one in 5e8 for a fair order.
double ChiSquareBound(double k) { return k + 2 * std::sqrt(k * 20) + 2 * 20; }

TEST(SampleOrderTest, SmallSetsTakeEveryOrderEquallyOften) {
  for (int64_t size : {2, 3, 4, 5, 6}) {
    int orders = 1;
    for (int i = 2; i <= size; ++i) orders *= i;
    const int draws = 200 * orders;
    std::map<std::vector<int64_t>, int> counts;
    for (int i = 0; i < draws; ++i) ++counts[Epoch(i % 7, size, i / 7)];
    EXPECT_EQ(counts.size(), static_cast<size_t>(orders)) << size;
    EXPECT_LT(ChiSquare(counts, 200), ChiSquareBound(orders - 1)) << size;
  }
}

TEST(SampleOrderTest, EverySampleMayStandAnywhere) {
  // Where does each of 37 samples (the domain is 64) stand in 3,700 epochs?
  constexpr int kSize = 37;
  std::map<std::array<int64_t, 2>, int> counts;
  for (int64_t epoch = 0; epoch < 100 * kSize; ++epoch) {
    const std::vector<int64_t> samples = Epoch(11, kSize, epoch);
    for (int64_t i = 0; i < kSize; ++i) ++counts[{i, samples[i]}];
  }
  EXPECT_EQ(counts.size(), 1u * kSize * kSize);
  EXPECT_LT(ChiSquare(counts, 100), ChiSquareBound((kSize - 1) * (kSize - 1)));
}

TEST(SampleOrderTest, NeighboursAreSpreadOverTheData) {
  // Differences of neighbouring positions, in 16 classes.
  constexpr int64_t kSize = 1 << 16;
  std::map<int64_t, int> counts;
  int64_t last = SampleIndex(5, kPermuted, kSize, 0);
  for (int64_t i = 1; i <= 16'000; ++i) {
    const int64_t sample = SampleIndex(5, kPermuted, kSize, i);
    ++counts[((sample - last + kSize) % kSize) * 16 / kSize];
    last = sample;
  }
  EXPECT_LT(ChiSquare(counts, 1000), ChiSquareBound(15));
}

}  // namespace
}  // namespace lockstep
