#include "kernels/matmul.h"

#include <algorithm>
#include <limits>

#include "kernels/bfloat16_reference.h"
#include "kernels/kernel_testing.h"
#include "kernels/matmul_reference.h"

namespace lockstep::kernels {
namespace {

class MatMulTest : public KernelTest {};
LS_INSTANTIATE_KERNEL_TEST(MatMulTest);

struct Case {
  int64_t m, n, k;
  bool transpose_a, transpose_b;
  int64_t gap = 0;  // Between rows, of every matrix.
};

struct Inputs {
  explicit Inputs(const Case& c, int64_t offset)
      : a_stride((c.transpose_a ? c.m : c.k) + c.gap + 1),
        b_stride((c.transpose_b ? c.k : c.n) + c.gap + 1),
        a_memory(RandomFloats(1, (c.transpose_a ? c.k : c.m) * a_stride),
                 offset),
        b_memory(RandomFloats(2, (c.transpose_b ? c.n : c.k) * b_stride),
                 offset),
        a{a_memory.data(), a_stride, c.transpose_a},
        b{b_memory.data(), b_stride, c.transpose_b} {}
  int64_t a_stride, b_stride;
  Unaligned<float> a_memory, b_memory;
  MatMulInput a, b;
};

// Of a sum of k products of normal values, added in float32 in some order: k
// roundings of partial sums of about sqrt(k), which mostly cancel; 1e-6 x k
// bounds them for every case here with a margin of about four.
double Tolerance(int64_t k) { return 1e-6 * static_cast<double>(k + 8); }

// Whatever all other rows of A hold, a row of C has the same bits; then
// whatever all other columns of B hold, one of its elements.  Neither is
// transposed.
template <typename In>
void ExpectThatRowsAndColumnsAreAlone(Stream& stream, const Case& c, In& in) {
  const auto product = [&] {
    std::vector<float> out(c.m * c.n);
    EXPECT_TRUE(
        MatMul(stream, c.m, c.n, c.k, in.a, in.b, out.data(), c.n).ok());
    return out;
  };
  const std::vector<float> whole = product();
  const int64_t row = c.m - 1;
  const int64_t column = c.n - 1;
  for (int64_t i = 0; i < row; ++i) {
    std::fill_n(in.a_memory.data() + i * in.a_stride, c.k,
                in.a_memory.data()[0]);
  }
  const std::vector<float> row_alone = product();
  for (int64_t j = row * c.n; j < c.m * c.n; ++j) {
    ASSERT_EQ(row_alone[j], whole[j]) << c.m << " " << j;
  }
  for (int64_t l = 0; l < c.k; ++l) {
    std::fill_n(in.b_memory.data() + l * in.b_stride, column,
                in.b_memory.data()[0]);
  }
  EXPECT_EQ(product()[row * c.n + column], whole[row * c.n + column]) << c.m;
}

TEST_P(MatMulTest, IsTheProduct) {
  for (const int64_t m : {0, 1, 7, 17, 257}) {
    for (const int64_t n : {1, 40, 150}) {
      for (const int64_t k : {1, 17, 400}) {
        for (const int transposes : {0, 1, 2, 3}) {
          const Case c{m, n, k, (transposes & 1) != 0, (transposes & 2) != 0,
                       3};
          Inputs in(c, 1);
          const std::vector<double> expected =
              MatMulReference(m, n, k, in.a, in.b);
          const int64_t c_stride = n + 2;
          std::vector<float> one_thread;
          for (const int threads : {1, 2, 3}) {
            // NaN: what was there must not be read; and gaps stay.
            std::vector<float> before(m * c_stride,
                                      std::numeric_limits<float>::quiet_NaN());
            Unaligned<float> out(before, threads);

            const absl::Status status = MatMul(StreamOf(threads), m, n, k, in.a,
                                               in.b, out.data(), c_stride);

            ASSERT_TRUE(status.ok()) << status;
            std::vector<float> result;
            for (int64_t i = 0; i < m * c_stride; ++i) {
              if (i % c_stride < n) {
                result.push_back(out.data()[i]);
              } else {
                ASSERT_TRUE(std::isnan(out.data()[i]));
              }
            }
            ASSERT_TRUE(AllNear(result, expected, Tolerance(k), 0))
                << m << " " << n << " " << k << " " << transposes;
            if (threads == 1) one_thread = result;
            ASSERT_TRUE(BitEqual(result, one_thread));
          }
        }
      }
    }
  }
}

TEST_P(MatMulTest, BitsDoNotDependOnThreadsWhereLibrariesSplitK) {
  const Case cases[] = {{256, 64, 2048, true, false},
                        {256, 256, 4096, true, false},
                        {64, 1000, 512, false, true},
                        {2000, 64, 256, false, false},
                        {1100, 48, 64, false, true}};
  for (const Case& c : cases) {
    Inputs in(c, 0);
    std::vector<float> one_thread(c.m * c.n);
    ASSERT_TRUE(
        MatMul(StreamOf(1), c.m, c.n, c.k, in.a, in.b, one_thread.data(), c.n)
            .ok());
    for (const int threads : {2, 3, 8}) {
      std::vector<float> out(c.m * c.n);
      ASSERT_TRUE(
          MatMul(StreamOf(threads), c.m, c.n, c.k, in.a, in.b, out.data(), c.n)
              .ok());
      ASSERT_TRUE(BitEqual(out, one_thread));
    }
  }
}

TEST_P(MatMulTest, AddsToWhatTheOptionsSay) {
  for (const int64_t k : {0, 5, 100}) {
    for (const int64_t m : {1, 17, 257}) {
      const int64_t n = 37;
      const Case c{m, n, k, false, false};
      Inputs in(c, 0);
      const std::vector<double> product = MatMulReference(m, n, k, in.a, in.b);
      const std::vector<float> old = RandomFloats(3, m * n);
      const std::vector<float> residual = RandomFloats(4, m * n);
      const std::vector<float> bias = RandomFloats(5, n);
      for (int what = 0; what < 6; ++what) {
        std::vector<float> out = old;
        MatMulOptions options;
        options.accumulate = what == 1;
        if (what == 2 || what == 4) options.bias = bias.data();
        if (what == 3 || what == 4) options.residual = residual.data();
        if (what == 5) {
          options.residual = out.data();
          options.bias = bias.data();
        }

        ASSERT_TRUE(
            MatMul(StreamOf(2), m, n, k, in.a, in.b, out.data(), n, options)
                .ok());

        std::vector<double> expected = product;
        for (int64_t i = 0; i < m * n; ++i) {
          if (what == 1 || what == 5) expected[i] += old[i];
          if (what == 3 || what == 4) expected[i] += residual[i];
          if (options.bias != nullptr) expected[i] += bias[i % n];
        }
        ASSERT_TRUE(AllNear(out, expected, Tolerance(k), 1e-6)) << what;
      }
    }
  }
}

TEST_P(MatMulTest, RowsAndColumnsDoNotTouchEachOther) {
  for (const int64_t m : {1, 17, 63, 300}) {
    const Case c{m, 96, 300, false, false};
    Inputs in(c, 0);
    ExpectThatRowsAndColumnsAreAlone(StreamOf(1), c, in);
  }
}

TEST_P(MatMulTest, NanAndInfinityAreCarried) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity()}) {
    const Case c{70, 20, 30, false, false};
    Inputs in(c, 0);
    in.a_memory.data()[3 * in.a_stride + 4] = bad;
    // Zeros too: zero times either is a NaN.
    for (int64_t j = 0; j < 20; j += 2) {
      in.b_memory.data()[4 * in.b_stride + j] = 0;
    }
    std::vector<float> out(70 * 20);

    ASSERT_TRUE(
        MatMul(StreamOf(1), 70, 20, 30, in.a, in.b, out.data(), 20).ok());

    for (int64_t i = 0; i < 70 * 20; ++i) {
      ASSERT_EQ(std::isfinite(out[i]), i / 20 != 3);
      if (i / 20 == 3 && i % 2 == 0) {
        ASSERT_TRUE(std::isnan(out[i]));
      }
    }
  }
}

// Of bfloat16: random values, rounded.
struct RoundedInputs {
  explicit RoundedInputs(const Case& c, int64_t offset = 0)
      : a_stride((c.transpose_a ? c.m : c.k) + c.gap),
        b_stride((c.transpose_b ? c.k : c.n) + c.gap),
        a_memory(Rounded(1, (c.transpose_a ? c.k : c.m) * a_stride), offset),
        b_memory(Rounded(2, (c.transpose_b ? c.n : c.k) * b_stride), offset),
        a{a_memory.data(), a_stride, c.transpose_a},
        b{b_memory.data(), b_stride, c.transpose_b} {}
  static std::vector<Bfloat16> Rounded(uint64_t seed, int64_t n) {
    std::vector<Bfloat16> rounded;
    for (const float x : RandomFloats(seed, n)) {
      rounded.push_back(RoundToBfloat16Reference(x));
    }
    return rounded;
  }
  int64_t a_stride, b_stride;
  Unaligned<Bfloat16> a_memory, b_memory;
  Bfloat16MatMulInput a, b;
};

class Bfloat16MatMulTest : public KernelTest {
 protected:
  void SetUp() override {
    if (!StreamOf(1).device().has_bfloat16()) GTEST_SKIP() << "no AVX-512";
  }
};
LS_INSTANTIATE_KERNEL_TEST(Bfloat16MatMulTest);

// Products of two elements are exact, and every addition has a relative error
// of at most 2^-23 (the hardware may round towards zero): k additions of
// partial sums none of which is above the sum of all magnitudes.
TEST_P(Bfloat16MatMulTest, IsTheProductOfTheRoundedInputs) {
  for (const int64_t m : {1, 7, 17, 257}) {
    for (const int64_t n : {1, 40, 150}) {
      for (const int64_t k : {1, 17, 400}) {
        for (const int transposes : {0, 1, 2, 3}) {
          const Case c{m, n, k, (transposes & 1) != 0, (transposes & 2) != 0,
                       3};
          RoundedInputs in(c, 1);
          const std::vector<double> expected =
              MatMulReference(m, n, k, in.a, in.b);
          const std::vector<double> magnitudes =
              MatMulMagnitudes(m, n, k, in.a, in.b);
          const int64_t c_stride = n + 2;
          std::vector<float> one_thread;
          for (const int threads : {1, 3}) {
            std::vector<float> before(m * c_stride,
                                      std::numeric_limits<float>::quiet_NaN());
            Unaligned<float> out(before, threads);

            const absl::Status status = MatMul(StreamOf(threads), m, n, k, in.a,
                                               in.b, out.data(), c_stride);

            ASSERT_TRUE(status.ok()) << status;
            std::vector<float> result;
            for (int64_t i = 0; i < m * c_stride; ++i) {
              if (i % c_stride >= n) {
                ASSERT_TRUE(std::isnan(out.data()[i]));
                continue;
              }
              const size_t at = result.size();
              result.push_back(out.data()[i]);
              ASSERT_LE(std::abs(result[at] - expected[at]),
                        static_cast<double>(k) * 0x1p-23 * magnitudes[at])
                  << m << " " << n << " " << k << " " << transposes;
            }
            if (threads == 1) one_thread = result;
            ASSERT_TRUE(BitEqual(result, one_thread));
          }
        }
      }
    }
  }
}

TEST_P(Bfloat16MatMulTest, BitsDoNotDependOnThreads) {
  const Case cases[] = {{256, 64, 2048, true, false},
                        {256, 256, 4096, true, false},
                        {64, 64, 16384, true, false},
                        {64, 1000, 512, false, true},
                        {2000, 64, 256, false, false}};
  for (const Case& c : cases) {
    RoundedInputs in(c);
    std::vector<float> one_thread(c.m * c.n);
    ASSERT_TRUE(
        MatMul(StreamOf(1), c.m, c.n, c.k, in.a, in.b, one_thread.data(), c.n)
            .ok());
    for (const int threads : {2, 3, 8}) {
      std::vector<float> out(c.m * c.n);
      ASSERT_TRUE(
          MatMul(StreamOf(threads), c.m, c.n, c.k, in.a, in.b, out.data(), c.n)
              .ok());
      ASSERT_TRUE(BitEqual(out, one_thread));
    }
  }
}

TEST_P(Bfloat16MatMulTest, RowsAndColumnsDoNotTouchEachOther) {
  for (const int64_t m : {1, 17, 63, 300}) {
    const Case c{m, 96, 300, false, false};
    RoundedInputs in(c);
    ExpectThatRowsAndColumnsAreAlone(StreamOf(1), c, in);
  }
}

TEST_P(Bfloat16MatMulTest, AddsToWhatTheOptionsSay) {
  const int64_t m = 70, n = 37, k = 100;
  RoundedInputs in({m, n, k, false, true});
  const std::vector<double> product = MatMulReference(m, n, k, in.a, in.b);
  const std::vector<float> old = RandomFloats(3, m * n);
  const std::vector<float> residual = RandomFloats(4, m * n);
  const std::vector<float> bias = RandomFloats(5, n);
  for (const bool accumulate : {false, true}) {
    std::vector<float> out = old;
    MatMulOptions options;
    options.accumulate = accumulate;
    if (!accumulate)
      options = {.residual = residual.data(), .bias = bias.data()};

    // Twice, the second time with what was prepared for the first.
    for (int again = 0; again < 2; ++again) {
      ASSERT_TRUE(
          MatMul(StreamOf(1), m, n, k, in.a, in.b, out.data(), n, options)
              .ok());
    }

    std::vector<double> expected(m * n);
    for (int64_t i = 0; i < m * n; ++i) {
      expected[i] = accumulate ? old[i] + 2 * product[i]
                               : residual[i] + bias[i % n] + product[i];
    }
    EXPECT_TRUE(AllNear(out, expected, Tolerance(k), 1e-6));
  }
}

TEST_P(Bfloat16MatMulTest, NanAndInfinityAreCarried) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity()}) {
    RoundedInputs in({70, 20, 30, false, false});
    in.a_memory.data()[3 * in.a_stride + 4] = RoundToBfloat16Reference(bad);
    std::vector<float> out(70 * 20);

    ASSERT_TRUE(
        MatMul(StreamOf(1), 70, 20, 30, in.a, in.b, out.data(), 20).ok());

    for (int64_t i = 0; i < 70 * 20; ++i) {
      ASSERT_EQ(std::isfinite(out[i]), i / 20 != 3);
    }
  }
}

TEST_P(MatMulTest, WrongArgumentsAreRefusedByName) {
  Stream& s = StreamOf(1);
  float f[4] = {};
  const MatMulInput in{f, 2};
  struct Refusal {
    absl::Status status;
    const char* message;
  };
  const Refusal refusals[] = {
      {MatMul(s, -1, 2, 2, in, in, f, 2), "m=-1"},
      {MatMul(s, 2, 2, 2, {f, 1}, in, f, 2), "a stride=1"},
      {MatMul(s, 2, 2, 2, in, {f, 1}, f, 2), "b stride=1"},
      {MatMul(s, 2, 2, 2, in, in, f, 1), "c stride=1"},
      {MatMul(s, 2, 2, 2, {nullptr, 2}, in, f, 2), "a is null"},
      {MatMul(s, 2, 2, 2, in, in, nullptr, 2), "c is null"},
      {MatMul(s, 2, 2, 2, in, in, f, 2, {.accumulate = true, .bias = f}),
       "accumulate"},
      {MatMul(s, int64_t{1} << 30, int64_t{1} << 30, 2, in, in, f, 2), "2^40"}};
  for (const Refusal& r : refusals) {
    EXPECT_EQ(r.status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(r.status.message().find(r.message), absl::string_view::npos)
        << r.status;
  }
}

}  // namespace
}  // namespace lockstep::kernels
