#include "worker/checkpoint/durable_file.h"

#include <filesystem>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/data/test_files.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

TEST(DurableFileTest, HasItsFullSizeBeforeAnythingIsWritten) {
  TestFolder folder;
  absl::StatusOr<NewFile> file = NewFile::Create(folder.Path("f"), 100'000);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(std::filesystem::file_size(folder.Path("f")), 100'000u);

  EXPECT_TRUE(file->WriteAt(99'995, "tail!", 5).ok());
  EXPECT_TRUE(file->WriteAt(0, "head", 4).ok());
  EXPECT_TRUE(file->Sync().ok());

  const std::string content = folder.Read("f");
  EXPECT_EQ(content.size(), 100'000u);
  EXPECT_EQ(content.substr(0, 5), std::string("head\0", 5));
  EXPECT_EQ(content.substr(99'995), "tail!");
}

TEST(DurableFileTest, NeverOpensWhatIsThere) {
  TestFolder folder;
  folder.Write("f", "precious");
  const absl::Status status = WriteNewFile(folder.Path("f"), "x");
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(status.message(), HasSubstr(folder.Path("f")));
  EXPECT_EQ(folder.Read("f"), "precious");

  EXPECT_EQ(CreateNewFolder(folder.path()).code(),
            absl::StatusCode::kAlreadyExists);
}

TEST(DurableFileTest, AFullDiskIsNoticedAtOnceAndLeavesNothing) {
  TestFolder folder;
  const absl::Status status =
      NewFile::Create(folder.Path("f"), int64_t{1} << 60).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("needs 1152921504606846976 bytes"));
  EXPECT_FALSE(std::filesystem::exists(folder.Path("f")));
}

TEST(DurableFileTest, NamesAFolderThatIsNotThere) {
  TestFolder folder;
  const std::string path = folder.Path("absent/f");
  EXPECT_EQ(WriteNewFile(path, "x").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(CreateNewFolder(path).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(SyncFolder(path).code(), absl::StatusCode::kNotFound);
}

TEST(DurableFileTest, PublishingRenamesButNeverReplaces) {
  TestFolder folder;
  ASSERT_TRUE(CreateNewFolder(folder.Path("tmp")).ok());
  ASSERT_TRUE(WriteNewFile(folder.Path("tmp/f"), "new").ok());
  ASSERT_TRUE(CreateNewFolder(folder.Path("taken")).ok());

  const absl::Status taken =
      PublishFolder(folder.Path("tmp"), folder.Path("taken"));
  EXPECT_EQ(taken.code(), absl::StatusCode::kAlreadyExists) << taken;
  EXPECT_EQ(folder.Read("tmp/f"), "new");

  EXPECT_TRUE(PublishFolder(folder.Path("tmp"), folder.Path("model")).ok());
  EXPECT_EQ(folder.Read("model/f"), "new");
  EXPECT_FALSE(std::filesystem::exists(folder.Path("tmp")));
}

}  // namespace
}  // namespace lockstep
