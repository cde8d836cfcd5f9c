#include "worker/agent/line_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

class LineWriterTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(pipe2(fds_, O_CLOEXEC), 0); }
  void TearDown() override {
    close(fds_[0]);
    if (fds_[1] >= 0) close(fds_[1]);
  }
  // All that is in the pipe once its writing end is closed.
  std::string Drain() {
    close(fds_[1]);
    fds_[1] = -1;
    std::string all;
    char bytes[4096];
    for (ssize_t n; (n = read(fds_[0], bytes, sizeof bytes)) > 0;) {
      all.append(bytes, static_cast<size_t>(n));
    }
    return all;
  }
  int fds_[2];
};

TEST_F(LineWriterTest, LinesComeInOrderWithTheirPrefix) {
  {
    LineWriter writer(fds_[1], [] {});
    writer.Write("a: ", "one");
    writer.Write("b: ", "");
    writer.Write("", std::string(10'000, 'x'));
  }
  EXPECT_EQ(Drain(),
            absl::StrCat("a: one\nb: \n", std::string(10'000, 'x'), "\n"));
}

TEST_F(LineWriterTest, AFileThatIsStuckNeitherBlocksTheCallerNorTheEnd) {
  LineWriter writer(fds_[1], [] {});
  const std::string line(1000, 'x');

  // More than the pipe and the queue hold together, and nobody reads.
  int lines = 0;
  while (!writer.full()) {
    ASSERT_LT(++lines, 10'000);
    writer.Write("", line);
  }
  for (int i = 0; i < 10; ++i) writer.Write("", line);

  EXPECT_GT(lines, 250);
}

TEST_F(LineWriterTest, SaysWhenThereIsRoomAgain) {
  std::atomic<int> rooms = 0;
  LineWriter writer(fds_[1], [&] { ++rooms; });
  const std::string line(1000, 'x');
  while (!writer.full()) writer.Write("", line);
  EXPECT_EQ(rooms, 0);

  char bytes[4096];
  while (rooms == 0) ASSERT_GT(read(fds_[0], bytes, sizeof bytes), 0);

  EXPECT_FALSE(writer.full());
}

}  // namespace
}  // namespace lockstep
