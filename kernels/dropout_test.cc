#include "kernels/dropout.h"

#include <limits>

#include "kernels/dropout_reference.h"
#include "kernels/kernel_testing.h"

namespace lockstep::kernels {
namespace {

class DropoutTest : public KernelTest {};
LS_INSTANTIATE_KERNEL_TEST(DropoutTest);

constexpr DropoutMask kMask = {.seed = (int64_t{7} << 40) + 5,
                               .site = 0x01020304,
                               .first_sample = (int64_t{1} << 33) + 9,
                               .rate = 0.3};

std::vector<float> Dropped(Stream& stream, const DropoutMask& mask,
                           const std::vector<float>& x,
                           const std::vector<float>* residual, int64_t rows,
                           int64_t offset = 0) {
  Unaligned<float> in(x, offset),
      r(residual == nullptr ? x : *residual, offset),
      out(std::vector<float>(x.size(), 9), offset);
  const int64_t size = rows == 0 ? 0 : std::ssize(x) / rows;
  EXPECT_TRUE(Dropout(stream, mask, in.data(),
                      residual == nullptr ? nullptr : r.data(), rows, size,
                      out.data())
                  .ok());
  return out.values();
}

}  // namespace

TEST_P(DropoutTest, FollowsTheFormula) {
  for (const int64_t rows : {0, 1, 7, 17}) {
    for (const int64_t size : {1, 3, 64, 257, 9001}) {
      for (const double rate : {0.0, 0.1, 0.5, 0.999}) {
        DropoutMask mask = kMask;
        mask.rate = rate;
        const std::vector<float> x = RandomFloats(1, rows * size);
        const std::vector<float> residual = RandomFloats(2, rows * size);
        std::vector<double> alone, added;
        for (int64_t row = 0; row < rows; ++row) {
          for (int64_t i = 0; i < size; ++i) {
            const int64_t at = row * size + i;
            alone.push_back(x[at] * DropoutFactorReference(mask, row, i));
            added.push_back(residual[at] + alone.back());
          }
        }
        for (const int threads : {1, 2, 3}) {
          // One rounding of the factor, one of the product, one of the sum.
          ASSERT_TRUE(AllNear(
              Dropped(StreamOf(threads), mask, x, nullptr, rows, threads),
              alone, 0, 2e-7));
          ASSERT_TRUE(AllNear(
              Dropped(StreamOf(threads), mask, x, &residual, rows, threads),
              added, 1e-6, 2e-7 / (1 - rate)));
        }
      }
    }
  }
}

TEST_P(DropoutTest, ASampleHasItsMaskWhereverItStands) {
  const int64_t rows = 4, size = 37;
  const std::vector<float> x = RandomFloats(1, rows * size);
  const std::vector<float> whole =
      Dropped(StreamOf(1), kMask, x, nullptr, rows);
  for (int64_t row = 0; row < rows; ++row) {
    DropoutMask mask = kMask;
    mask.first_sample += row;
    const std::vector<float> alone =
        Dropped(StreamOf(2), mask,
                std::vector<float>(x.begin() + row * size,
                                   x.begin() + (row + 1) * size),
                nullptr, 1);
    ASSERT_TRUE(
        BitEqual(alone, std::vector<float>(whole.begin() + row * size,
                                           whole.begin() + (row + 1) * size)));
  }
}

TEST_P(DropoutTest, EverythingOfTheMaskCounts) {
  const std::vector<float> ones(1000, 1);
  const std::vector<float> base = Dropped(StreamOf(1), kMask, ones, nullptr, 1);
  int64_t kept = 0;
  for (const float v : base) kept += v != 0;
  // 700 expected, with a deviation of 14.5.
  EXPECT_NEAR(static_cast<double>(kept), 700, 60);
  for (int which = 0; which < 5; ++which) {
    DropoutMask other = kMask;
    if (which == 0) other.seed += 1;
    if (which == 1) other.seed += int64_t{1} << 32;
    if (which == 2) other.site += 1;
    if (which == 3) other.first_sample += 1;
    if (which == 4) other.first_sample += int64_t{1} << 32;
    EXPECT_FALSE(BitEqual(Dropped(StreamOf(1), other, ones, nullptr, 1), base));
  }
}

TEST_P(DropoutTest, WorksInPlace) {
  const std::vector<float> x = RandomFloats(1, 300);
  const std::vector<float> residual = RandomFloats(2, 300);
  const std::vector<float> apart = Dropped(StreamOf(1), kMask, x, &residual, 3);
  std::vector<float> over_x = x, over_residual = residual;
  ASSERT_TRUE(Dropout(StreamOf(1), kMask, over_x.data(), residual.data(), 3,
                      100, over_x.data())
                  .ok());
  ASSERT_TRUE(Dropout(StreamOf(1), kMask, x.data(), over_residual.data(), 3,
                      100, over_residual.data())
                  .ok());
  EXPECT_TRUE(BitEqual(over_x, apart));
  EXPECT_TRUE(BitEqual(over_residual, apart));
}

TEST_P(DropoutTest, ANanIsCarriedWhereItIsKept) {
  const std::vector<float> nans(200, std::numeric_limits<float>::quiet_NaN());
  const std::vector<float> r = Dropped(StreamOf(1), kMask, nans, nullptr, 1);
  for (int64_t i = 0; i < 200; ++i) {
    ASSERT_EQ(std::isnan(r[i]), DropoutFactorReference(kMask, 0, i) > 0) << i;
  }
}

TEST_P(DropoutTest, WrongArgumentsAreRefused) {
  float f[4] = {};
  Stream& s = StreamOf(1);
  for (const double rate : {-0.1, 1.0, std::nan("")}) {
    EXPECT_EQ(Dropout(s, {.rate = rate}, f, f, 1, 1, f).code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(Dropout(s, kMask, nullptr, f, 1, 1, f).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Dropout(s, kMask, f, f, -1, 1, f).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace lockstep::kernels
