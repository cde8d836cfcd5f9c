#include "kernels/column_sums.h"

#include "kernels/column_sums_reference.h"
#include "kernels/kernel_testing.h"

namespace lockstep::kernels {
namespace {

class ColumnSumsTest : public KernelTest {};
LS_INSTANTIATE_KERNEL_TEST(ColumnSumsTest);

TEST_P(ColumnSumsTest, AddsUpEveryColumn) {
  for (const int64_t rows : {0, 1, 7, 17, 63, 64, 65, 257}) {
    for (const int64_t width : {1, 15, 48, 1500}) {
      const std::vector<float> x = RandomFloats(1, rows * width);
      const std::vector<double> expected =
          ColumnSumsReference(ToDouble(x), width);
      std::vector<float> one;
      for (const int threads : {1, 2, 3}) {
        Unaligned<float> in(x, threads);
        Unaligned<float> out(std::vector<float>(width, 9), threads);
        std::vector<float> workspace(ColumnSumsWorkspace(rows, width), 9);

        ASSERT_TRUE(ColumnSums(StreamOf(threads), in.data(), rows, width,
                               out.data(), workspace.data())
                        .ok());

        // At most 257 + 5 roundings of sums of up to about 60.
        ASSERT_TRUE(AllNear(out.values(), expected, 5e-5, 0));
        if (threads == 1) one = out.values();
        ASSERT_TRUE(BitEqual(out.values(), one));
      }
    }
  }
}

TEST_P(ColumnSumsTest, AColumnDoesNotDependOnItsNeighbours) {
  const int64_t rows = 130, width = 75;
  const std::vector<float> x = RandomFloats(1, rows * width);
  std::vector<float> whole(width), workspace(3 * width);
  ASSERT_TRUE(ColumnSums(StreamOf(1), x.data(), rows, width, whole.data(),
                         workspace.data())
                  .ok());
  for (int64_t column = 0; column < width; ++column) {
    std::vector<float> alone;
    for (int64_t r = 0; r < rows; ++r) alone.push_back(x[r * width + column]);
    float sum = 0;
    ASSERT_TRUE(
        ColumnSums(StreamOf(1), alone.data(), rows, 1, &sum, workspace.data())
            .ok());
    ASSERT_EQ(sum, whole[column]);
  }
}

TEST_P(ColumnSumsTest, WrongArgumentsAreRefused) {
  float f = 0;
  EXPECT_EQ(ColumnSums(StreamOf(1), &f, 1, -1, &f, &f).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ColumnSums(StreamOf(1), nullptr, 1, 1, &f, &f).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lockstep::kernels
