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
  std::vector<float> workspace(AttentionWorkspace(stream.device(), s),
                               std::numeric_limits<float>::quiet_NaN());
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
      {0, 5, 2, 2, 16},  {1, 1, 1, 1, 16},  {2, 37, 3, 3, 16},
      {1, 37, 2, 2, 64}, {3, 64, 2, 2, 80}, {1, 65, 1, 1, 128},
      {2, 1, 2, 2, 80},  {1, 130, 2, 2, 5}, {1, 1000, 1, 1, 64},
      {2, 70, 4, 2, 16}, {1, 70, 6, 2, 64}, {2, 37, 5, 1, 80}};
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
      // 1,000 terms, each within some 1e-6 of its size of up to about 10.
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
  const AttentionShape s{3, 37, 2, 2, 16};
  const std::vector<float> qkv = Qkv(s);
  const std::vector<float> g = OutGradient(s);
  const Result whole = RunBoth(StreamOf(2), s, qkv, g);
  const AttentionShape one{1, 37, 2, 2, 16};
  for (int64_t row = 0; row < 3; ++row) {
    const auto part = [&](const std::vector<float>& v) {
      const int64_t n = std::ssize(v) / 3;
      return std::vector<float>(v.begin() + row * n, v.begin() + (row + 1) * n);
    };
    const Result alone = RunBoth(StreamOf(1), one, part(qkv), part(g), row);
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

TEST_P(AttentionTest, ANanReachesEverythingThatSeesIt) {
  const AttentionShape s{1, 70, 1, 1, 16};
  for (const int which : {0, 1, 2}) {
    std::vector<float> qkv = Qkv(s);
    qkv[30 * s.qkv_width() + which * s.width() + 3] =
        std::numeric_limits<float>::quiet_NaN();
    const Result r = RunBoth(StreamOf(1), s, qkv, OutGradient(s));
    // A query is seen by its own position, keys and values by all later ones.
    for (int64_t t = 30; t < (which == 0 ? 31 : 70); ++t) {
      ASSERT_TRUE(std::isnan(r.out[t * s.width() + 3])) << which << " " << t;
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
