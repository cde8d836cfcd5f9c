#include "kernels/attention.h"

#include <limits>

#include "kernels/attention_reference.h"
#include "kernels/kernel_testing.h"

namespace lockstep::kernels {
namespace {

class AttentionTest : public KernelTest {};
LS_INSTANTIATE_KERNEL_TEST(AttentionTest);

struct Result {
  std::vector<float> out, log_sum_exp, gradient;
};

Result RunBoth(Stream& stream, const AttentionShape& s,
               const std::vector<float>& qkv,
               const std::vector<float>& out_gradient, int64_t offset = 0,
               const DropoutMask* dropout = nullptr) {
  Unaligned<float> in(qkv, offset), g(out_gradient, offset);
  Unaligned<float> out(std::vector<float>(out_gradient.size(), 9), offset);
  Unaligned<float> log_sum_exp(
      std::vector<float>(s.row_count * s.head_count * s.sequence_length, 9),
      offset);
  // NaN: what was there must not count.
  Unaligned<float> gradient(
      std::vector<float>(qkv.size(), std::numeric_limits<float>::quiet_NaN()),
      offset);
  Unaligned<float> workspace(
      std::vector<float>(AttentionWorkspace(stream.device(), s),
                         std::numeric_limits<float>::quiet_NaN()),
      offset);
  EXPECT_TRUE(AttentionForward(stream, s, in.data(), out.data(),
                               log_sum_exp.data(), workspace.data(), dropout)
                  .ok());
  EXPECT_TRUE(AttentionBackward(stream, s, in.data(), out.data(),
                                log_sum_exp.data(), g.data(), gradient.data(),
                                workspace.data(), dropout)
                  .ok());
  return {out.values(), log_sum_exp.values(), gradient.values()};
}

std::vector<float> Qkv(const AttentionShape& s) {
  return RandomFloats(1, s.row_count * s.sequence_length * s.qkv_width());
}

std::vector<float> OutGradient(const AttentionShape& s) {
  return RandomFloats(2, s.row_count * s.sequence_length * s.width());
}

TEST_P(AttentionTest, FollowsTheFormula) {
  const AttentionShape shapes[] = {
      {0, 5, 2, 2, 16},  {1, 1, 1, 1, 16},    {2, 37, 3, 3, 16},
      {1, 37, 2, 2, 64}, {3, 64, 2, 2, 80},   {1, 65, 1, 1, 128},
      {2, 1, 2, 2, 80},  {1, 130, 2, 2, 5},   {1, 1000, 1, 1, 64},
      {2, 70, 4, 2, 16}, {1, 70, 6, 2, 64},   {2, 37, 5, 1, 80},
      {2, 7, 2, 1, 80},  {1, 17, 3, 1, 64},   {1, 66, 1, 1, 67},
      {1, 64, 1, 1, 16}, {1, 257, 4, 2, 128}, {1, 600, 2, 1, 16}};
  for (const AttentionShape& s : shapes) {
    const std::vector<float> qkv = Qkv(s);
    const std::vector<float> g = OutGradient(s);
    const AttentionReference forward =
        AttentionForwardReference(s, ToDouble(qkv));
    const std::vector<double> gradient =
        AttentionBackwardReference(s, ToDouble(qkv), ToDouble(g));
    Result one;
    for (const int threads : {1, 2, 3}) {
      const Result r = RunBoth(StreamOf(threads), s, qkv, g, threads);

      // Scores of about 1 from head_width products, within 1e-6; outputs are
      // means of normal values.  Gradients of the first keys are sums of up to
      // 1,000 terms, one after the other: of a size of up to about 10, each
      // rounds by up to 2^-21, at random, so that sqrt(1000) of them stay
      // within 2e-5.
      ASSERT_TRUE(AllNear(r.log_sum_exp, forward.log_sum_exp, 3e-6, 1e-6));
      ASSERT_TRUE(AllNear(r.out, forward.out, 1e-5, 1e-6));
      ASSERT_TRUE(AllNear(r.gradient, gradient, 5e-5, 1e-5))
          << s.sequence_length << " " << s.head_width;
      if (threads == 1) one = r;
      ASSERT_TRUE(BitEqual(r.out, one.out));
      ASSERT_TRUE(BitEqual(r.log_sum_exp, one.log_sum_exp));
      ASSERT_TRUE(BitEqual(r.gradient, one.gradient));
    }
  }
}

TEST_P(AttentionTest, WithDropoutItFollowsTheFormula) {
  const AttentionShape shapes[] = {{2, 37, 3, 3, 16},
                                   {3, 70, 4, 2, 64},
                                   {1, 1, 1, 1, 16},
                                   {1, 200, 1, 1, 80}};
  const DropoutMask mask{
      .seed = 5, .site = 77, .first_sample = 1000, .rate = 0.2};
  for (const AttentionShape& s : shapes) {
    const std::vector<float> qkv = Qkv(s);
    const std::vector<float> g = OutGradient(s);
    const AttentionReference forward =
        AttentionForwardReference(s, ToDouble(qkv), &mask);
    const std::vector<double> gradient =
        AttentionBackwardReference(s, ToDouble(qkv), ToDouble(g), &mask);
    Result one;
    for (const int threads : {1, 2, 3}) {
      const Result r = RunBoth(StreamOf(threads), s, qkv, g, threads, &mask);
      ASSERT_TRUE(AllNear(r.log_sum_exp, forward.log_sum_exp, 3e-6, 1e-6));
      ASSERT_TRUE(AllNear(r.out, forward.out, 1e-5, 1e-6));
      ASSERT_TRUE(AllNear(r.gradient, gradient, 5e-5, 1e-5))
          << s.sequence_length << " " << s.head_width;
      if (threads == 1) one = r;
      ASSERT_TRUE(BitEqual(r.out, one.out));
      ASSERT_TRUE(BitEqual(r.gradient, one.gradient));
    }
    EXPECT_FALSE(BitEqual(RunBoth(StreamOf(1), s, qkv, g).out, one.out));
  }
}

TEST_P(AttentionTest, ARowsMaskIsItsSamples) {
  const AttentionShape s{3, 37, 2, 1, 16}, alone{1, 37, 2, 1, 16};
  DropoutMask mask{.seed = 5, .site = 77, .first_sample = 10, .rate = 0.2};
  const std::vector<float> qkv = Qkv(s);
  const std::vector<float> g = OutGradient(s);
  const Result whole = RunBoth(StreamOf(2), s, qkv, g, 0, &mask);
  for (int64_t row = 0; row < 3; ++row) {
    const auto part = [&](const std::vector<float>& v) {
      const int64_t n = std::ssize(v) / 3;
      return std::vector<float>(v.begin() + row * n, v.begin() + (row + 1) * n);
    };
    mask.first_sample = 10 + row;
    const Result r = RunBoth(StreamOf(1), alone, part(qkv), part(g), 1, &mask);
    ASSERT_TRUE(BitEqual(r.out, part(whole.out)));
    ASSERT_TRUE(BitEqual(r.gradient, part(whole.gradient)));
  }
}

TEST_P(AttentionTest, LaterPositionsHaveNoSay) {
  const AttentionShape s{1, 100, 2, 1, 16};
  const std::vector<float> qkv = Qkv(s);
  const std::vector<float> g = OutGradient(s);
  const Result before = RunBoth(StreamOf(1), s, qkv, g);
  for (const int64_t position : {1, 63, 64, 99}) {
    std::vector<float> changed = qkv;
    for (int64_t i = position * s.qkv_width(); i < std::ssize(qkv); ++i) {
      changed[i] += 1;
    }
    const Result after = RunBoth(StreamOf(1), s, changed, g);
    for (int64_t i = 0; i < position * s.width(); ++i) {
      ASSERT_EQ(before.out[i], after.out[i]) << position << " " << i;
    }
    ASSERT_NE(before.out[position * s.width()],
              after.out[position * s.width()]);
  }
}

TEST_P(AttentionTest, ARowDoesNotDependOnItsNeighbours) {
  for (const AttentionShape& s :
       {AttentionShape{3, 37, 2, 2, 16}, {3, 130, 4, 2, 80}}) {
    const std::vector<float> qkv = Qkv(s);
    const std::vector<float> g = OutGradient(s);
    const Result whole = RunBoth(StreamOf(3), s, qkv, g);
    AttentionShape one = s;
    one.row_count = 1;
    for (int64_t row = 0; row < 3; ++row) {
      const auto part = [&](const std::vector<float>& v) {
        const int64_t n = std::ssize(v) / 3;
        return std::vector<float>(v.begin() + row * n,
                                  v.begin() + (row + 1) * n);
      };
      const Result alone = RunBoth(StreamOf(1), one, part(qkv), part(g), row);
      ASSERT_TRUE(BitEqual(alone.out, part(whole.out)));
      ASSERT_TRUE(BitEqual(alone.log_sum_exp, part(whole.log_sum_exp)));
      ASSERT_TRUE(BitEqual(alone.gradient, part(whole.gradient)));
    }
  }
}

// Nor on how far apart its positions lie.
TEST_P(AttentionTest, AHeadDoesNotDependOnItsNeighbours) {
  const AttentionShape s{1, 130, 3, 3, 20}, one{1, 130, 1, 1, 20};
  const std::vector<float> qkv = Qkv(s);
  const std::vector<float> g = OutGradient(s);
  const Result whole = RunBoth(StreamOf(2), s, qkv, g);
  for (int64_t head = 0; head < 3; ++head) {
    // Of rows of 3 heads, or three times as many.
    const auto part = [&](const std::vector<float>& v) {
      std::vector<float> columns;
      for (int64_t at = head * 20; at < std::ssize(v); at += 60) {
        columns.insert(columns.end(), v.begin() + at, v.begin() + at + 20);
      }
      return columns;
    };
    const Result alone = RunBoth(StreamOf(1), one, part(qkv), part(g));
    ASSERT_TRUE(BitEqual(alone.out, part(whole.out)));
    ASSERT_TRUE(BitEqual(alone.gradient, part(whole.gradient)));
  }
}

TEST_P(AttentionTest, LargeScoresDoNotOverflow) {
  const AttentionShape s{1, 40, 1, 1, 16};
  std::vector<float> qkv = Qkv(s);
  for (float& v : qkv) v *= 100;
  const Result r = RunBoth(StreamOf(1), s, qkv, OutGradient(s));
  const AttentionReference expected =
      AttentionForwardReference(s, ToDouble(qkv));
  // Scores of up to 1e5 within 2^-8, so that ties are off by a hundredth.
  EXPECT_TRUE(AllNear(r.log_sum_exp, expected.log_sum_exp, 1e-2, 1e-6));
  for (const float v : r.gradient) EXPECT_TRUE(std::isfinite(v));
}

// Where `actual` is not finite, and `expected` is not.
testing::AssertionResult SameFinite(const std::vector<float>& actual,
                                    const std::vector<double>& expected) {
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::isfinite(actual[i]) != std::isfinite(expected[i])) {
      return testing::AssertionFailure()
             << "at " << i << ": " << actual[i] << ", expected " << expected[i];
    }
  }
  return testing::AssertionSuccess();
}

// What is masked is left out, and not multiplied by zero.
TEST_P(AttentionTest, ANanReachesWhatSeesItAndNothingElse) {
  const AttentionShape s{1, 70, 2, 1, 16};
  const auto nan = std::numeric_limits<float>::quiet_NaN();
  const auto infinity = std::numeric_limits<float>::infinity();
  for (const float value : {nan, infinity, -infinity}) {
    // 3: the output's gradient.
    for (const int which : {0, 1, 2, 3}) {
      for (const int64_t position : {0, 1, 15, 16, 30, 63, 64, 65, 69}) {
        std::vector<float> qkv = Qkv(s);
        std::vector<float> g = OutGradient(s);
        const int64_t begins[] = {0, s.width(), s.width() + s.head_width};
        if (which < 3) {
          qkv[position * s.qkv_width() + begins[which] + 3] = value;
        } else {
          g[position * s.width() + 3] = value;
        }

        const Result r = RunBoth(StreamOf(1), s, qkv, g);

        const AttentionReference forward =
            AttentionForwardReference(s, ToDouble(qkv));
        const auto what = [&] {
          return testing::Message()
                 << value << " in " << which << " at " << position;
        };
        ASSERT_TRUE(SameFinite(r.out, forward.out)) << what();
        ASSERT_TRUE(SameFinite(r.log_sum_exp, forward.log_sum_exp)) << what();
        ASSERT_TRUE(SameFinite(r.gradient, AttentionBackwardReference(
                                               s, ToDouble(qkv), ToDouble(g))))
            << what();
      }
    }
  }
}

TEST(AttentionReferenceTest, BackwardIsTheSlopeOfForward) {
  const AttentionShape s{2, 5, 4, 2, 3};
  std::vector<double> qkv = ToDouble(Qkv(s));
  const std::vector<double> g = ToDouble(OutGradient(s));
  const DropoutMask mask{.seed = 1, .rate = 0.4};
  for (const DropoutMask* dropout :
       {static_cast<const DropoutMask*>(nullptr), &mask}) {
    const auto loss = [&] {
      const std::vector<double> out =
          AttentionForwardReference(s, qkv, dropout).out;
      double sum = 0;
      for (size_t i = 0; i < out.size(); ++i) sum += out[i] * g[i];
      return sum;
    };
    const std::vector<double> gradient =
        AttentionBackwardReference(s, qkv, g, dropout);
    for (size_t i = 0; i < qkv.size(); ++i) {
      const double at = qkv[i];
      qkv[i] = at + 1e-5;
      const double above = loss();
      qkv[i] = at - 1e-5;
      const double below = loss();
      qkv[i] = at;
      ASSERT_NEAR((above - below) / 2e-5, gradient[i], 1e-8) << i;
    }
  }
}

TEST_P(AttentionTest, WrongArgumentsAreRefused) {
  float f[3] = {};
  Stream& s = StreamOf(1);
  EXPECT_EQ(AttentionForward(s, {1, 1, 1, 1, -1}, f, f, f, f).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(AttentionForward(s, {1, 1, 1, 1, 1}, f, f, nullptr, f).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(AttentionForward(s, {1, 1, 3, 2, 1}, f, f, f, f).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      AttentionBackward(s, {1, 1, 1, 1, 1}, f, f, f, f, nullptr, f).code(),
      absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lockstep::kernels
