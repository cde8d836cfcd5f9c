#include "common/file_write.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

TEST(FileWriteTest, ReplacesAFileAndLeavesNothingElse) {
  const std::string folder = std::string(getenv("TEST_TMPDIR")) + "/file_write";
  std::filesystem::create_directory(folder);
  const std::string path = folder + "/port";

  ASSERT_TRUE(WriteFileAtomically(path, "a longer text").ok());
  ASSERT_TRUE(WriteFileAtomically(path, "7600\n").ok());

  EXPECT_EQ(ReadFile(path), "7600\n");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
}

TEST(FileWriteTest, AnErrorNamesTheFileAndLeavesNothing) {
  const std::string folder =
      std::string(getenv("TEST_TMPDIR")) + "/file_write_error";
  // A folder is in the way.
  std::filesystem::create_directories(folder + "/port/x");

  const absl::Status status = WriteFileAtomically(folder + "/port", "7600");

  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("/port"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  EXPECT_EQ(WriteFileAtomically(folder + "/none/port", "x").code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace lockstep
