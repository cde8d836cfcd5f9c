#include "kernels/cpu/targets.h"
#include "kernels/kernel_testing.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd_test.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/log-inl.h"
#include "kernels/cpu/simd-inl.h"

#if LS_SIMD_TARGET
HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::cpu {
namespace HWY_NAMESPACE {

void ExpArray(const float* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += kLanes) {
    StorePart(Exp(LoadPart(x + i, n - i)), out + i, n - i);
  }
}

double LogOne(float x) { return LogOf(x); }

}  // namespace HWY_NAMESPACE
}  // namespace lockstep::kernels::cpu
HWY_AFTER_NAMESPACE();
#endif  // LS_SIMD_TARGET

#if HWY_ONCE
#include <cmath>
#include <limits>

namespace lockstep::kernels::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

class SimdTest : public KernelTest {};
LS_INSTANTIATE_KERNEL_TEST(SimdTest);

float ExpOf(float x) {
  float out = 0;
  LS_DISPATCH(ExpArray)(&x, 1, &out);
  return out;
}

TEST_P(SimdTest, ExpIsWithinTwoUnitsInTheLastPlace) {
  std::vector<float> x;
  for (int64_t i = 0; i < 2'000'003; ++i) {
    x.push_back(static_cast<float>(-86.6 + 174.6 * i / 2'000'002.0));
  }
  x.push_back(0);
  x.push_back(1e-30f);
  std::vector<float> out(x.size());
  LS_DISPATCH(ExpArray)(x.data(), std::ssize(x), out.data());
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double right = std::exp(double{x[i]});
    const auto rounded = static_cast<float>(right);
    const double unit = std::nextafter(rounded, kInf) - rounded;
    worst = std::max(worst, std::abs(out[i] - right) / unit);
  }
  EXPECT_LT(worst, 2);
  EXPECT_EQ(ExpOf(0), 1);
}

TEST_P(SimdTest, ExpSaturatesAndCarriesNan) {
  EXPECT_EQ(ExpOf(-86.7f), 0);
  EXPECT_EQ(ExpOf(-1e30f), 0);
  EXPECT_EQ(ExpOf(-kInf), 0);
  EXPECT_GT(ExpOf(-86.5f), 0);
  EXPECT_EQ(ExpOf(89), ExpOf(88));
  EXPECT_EQ(ExpOf(kInf), ExpOf(88));
  EXPECT_TRUE(std::isfinite(ExpOf(88)));
  EXPECT_TRUE(std::isnan(ExpOf(std::numeric_limits<float>::quiet_NaN())));
}

TEST_P(SimdTest, LogIsThatOfTheLibraryWithinSomeUnits) {
  const auto log = LS_DISPATCH(LogOne);
  for (float x = 1; x < 1e38f; x *= 1.37f) {
    EXPECT_NEAR(log(x), std::log(double{x}), 1e-15 * (1 + std::log(x)));
  }
  EXPECT_EQ(log(1), 0);
  EXPECT_EQ(log(kInf), kInf);
  EXPECT_TRUE(std::isnan(log(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace lockstep::kernels::cpu
#endif  // HWY_ONCE
