#include "kernels/bfloat16.h"

#include <bit>
#include <limits>

#include "kernels/bfloat16_reference.h"
#include "kernels/kernel_testing.h"

namespace lockstep::kernels {
namespace {

class Bfloat16Test : public KernelTest {};
LS_INSTANTIATE_KERNEL_TEST(Bfloat16Test);

std::vector<uint16_t> BitsOf(const std::vector<Bfloat16>& values) {
  std::vector<uint16_t> bits;
  for (const Bfloat16 b : values) bits.push_back(b.bits);
  return bits;
}

// Every upper half with the lower halves around which rounding turns.
std::vector<float> TurningPoints() {
  std::vector<float> values;
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      values.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  return values;
}

TEST_P(Bfloat16Test, EveryValueIsRoundedToTheNearest) {
  const std::vector<float> x = TurningPoints();
  const auto n = std::ssize(x);
  std::vector<uint16_t> expected;
  for (const float v : x) {
    expected.push_back(RoundToBfloat16Reference(v).bits);
  }

  std::vector<Bfloat16> out(n);
  ASSERT_TRUE(RoundToBfloat16(StreamOf(2), x.data(), n, 1, n, out.data()).ok());

  EXPECT_EQ(BitsOf(out), expected);
  EXPECT_EQ(RoundToBfloat16Reference(1 + 0x1p-8f).value(), 1);
  EXPECT_EQ(RoundToBfloat16Reference(1 + 3 * 0x1p-8f).value(), 1 + 0x1p-6f);
  EXPECT_EQ(RoundToBfloat16Reference(std::numeric_limits<float>::max()).value(),
            std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(
      RoundToBfloat16Reference(std::bit_cast<float>(0x7f800001u)).value()));
}

TEST_P(Bfloat16Test, RowsCloseUpAndNothingElseIsWritten) {
  for (const int64_t rows : {0, 1, 7, 257}) {
    for (const int64_t width : {1, 15, 16, 17, 100}) {
      for (const int64_t gap : {0, 3}) {
        const int64_t stride = width + gap;
        Unaligned<float> x(RandomFloats(1, rows * stride), gap);
        std::vector<uint16_t> expected;
        for (int64_t i = 0; i < rows * stride; ++i) {
          if (i % stride >= width) continue;
          expected.push_back(RoundToBfloat16Reference(x.data()[i]).bits);
        }
        Unaligned<Bfloat16> out(std::vector<Bfloat16>(rows * width), 1);

        ASSERT_TRUE(RoundToBfloat16(StreamOf(3), x.data(), stride, rows, width,
                                    out.data())
                        .ok());

        ASSERT_EQ(BitsOf(out.values()), expected) << rows << " " << width;
      }
    }
  }
}

TEST_P(Bfloat16Test, WrongArgumentsAreRefusedByName) {
  Stream& s = StreamOf(1);
  float x[4] = {};
  Bfloat16 out[4];
  const struct {
    absl::Status status;
    const char* message;
  } refusals[] = {{RoundToBfloat16(s, x, 2, -1, 2, out), "row_count=-1"},
                  {RoundToBfloat16(s, x, 1, 2, 2, out), "stride=1"},
                  {RoundToBfloat16(s, nullptr, 2, 2, 2, out), "x is null"},
                  {RoundToBfloat16(s, x, 2, 2, 2, nullptr), "out is null"}};
  for (const auto& r : refusals) {
    EXPECT_EQ(r.status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(r.status.message().find(r.message), absl::string_view::npos)
        << r.status;
  }
}

}  // namespace
}  // namespace lockstep::kernels
