#include "worker/data/random_access_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/data/test_files.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

std::string Read(const RandomAccessFile& file, int64_t offset, int64_t n) {
  std::string out(n, '?');
  const absl::Status read = file.ReadAt(offset, n, out.data());
  EXPECT_TRUE(read.ok()) << read;
  return out;
}

TEST(RandomAccessFileTest, ReadsAnywhere) {
  TestFolder folder;
  absl::StatusOr<RandomAccessFile> file =
      RandomAccessFile::Open(folder.Write("f", "0123456789"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->size(), 10);
  EXPECT_EQ(Read(*file, 0, 10), "0123456789");
  EXPECT_EQ(Read(*file, 7, 3), "789");
  EXPECT_EQ(Read(*file, 10, 0), "");

  RandomAccessFile moved = *std::move(file);
  EXPECT_EQ(Read(moved, 2, 2), "23");
}

TEST(RandomAccessFileTest, RefusesWhatIsNoRegularFile) {
  TestFolder folder;
  const absl::Status missing =
      RandomAccessFile::Open(folder.Path("absent")).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(missing.message(), HasSubstr(folder.Path("absent")));

  const absl::Status directory = RandomAccessFile::Open(folder.path()).status();
  EXPECT_EQ(directory.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(directory.message(), HasSubstr("is a directory"));

  // Without a writer: opening it must not wait for one.
  ASSERT_EQ(mkfifo(folder.Path("pipe").c_str(), 0600), 0);
  EXPECT_THAT(RandomAccessFile::Open(folder.Path("pipe")).status().message(),
              HasSubstr("expected a regular file"));
}

TEST(RandomAccessFileTest, NamesAFileItMayNotRead) {
  TestFolder folder;
  const std::string path = folder.Write("secret", "x");
  ASSERT_EQ(chmod(path.c_str(), 0), 0);
  // Root may read everything: be nobody for a moment.
  const bool root = geteuid() == 0;
  ASSERT_EQ(seteuid(root ? 65534 : geteuid()), 0);
  const absl::Status status = RandomAccessFile::Open(path).status();
  ASSERT_EQ(seteuid(root ? 0 : geteuid()), 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(status.message(), HasSubstr(path));
}

TEST(RandomAccessFileTest, AFileThatWasCutIsAnErrorAndNotASignal) {
  TestFolder folder;
  const std::string path = folder.Write("f", std::string(100'000, 'x'));
  absl::StatusOr<RandomAccessFile> file = RandomAccessFile::Open(path);
  ASSERT_TRUE(file.ok());

  std::filesystem::resize_file(path, 60'000);

  std::string out(100'000, '?');
  const absl::Status status = file->ReadAt(0, 100'000, out.data());
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr(path));
  EXPECT_THAT(status.message(), HasSubstr("before byte 60000"));
  EXPECT_TRUE(file->ReadAt(0, 60'000, out.data()).ok());
}

}  // namespace
}  // namespace lockstep
