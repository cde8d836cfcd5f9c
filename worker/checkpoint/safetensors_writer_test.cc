#include "worker/checkpoint/safetensors_writer.h"

#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/data/test_files.h"

namespace lockstep {
namespace {

using testing::ElementsAre;

TEST(SafetensorsWriterTest, WritesTheBytesOfTheConvention) {
  TestFolder folder;
  absl::StatusOr<SafetensorsWriter> writer =
      SafetensorsWriter::Create(folder.Path("f"), {{"b", Dtype::kBf16, {1}},
                                                   {"a\"", Dtype::kBf16, {}},
                                                   {"z", Dtype::kF32, {1, 2}},
                                                   {"u", Dtype::kU64, {0}}});
  ASSERT_TRUE(writer.ok()) << writer.status();
  const float z[] = {1, 2};
  // In any order, in any pieces.
  ASSERT_TRUE(writer->Append("b", "\x80\x3f", 2).ok());
  ASSERT_TRUE(writer->Append("z", z, 4).ok());
  ASSERT_TRUE(writer->Append("a\"", "\x40\x40", 2).ok());
  ASSERT_TRUE(writer->Append("z", z + 1, 4).ok());
  ASSERT_TRUE(writer->Finish().ok());

  std::string header =
      R"({"__metadata__":{"format":"pt"},)"
      R"("u":{"dtype":"U64","shape":[0],"data_offsets":[0,0]},)"
      R"("z":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
      R"("a\"":{"dtype":"BF16","shape":[],"data_offsets":[8,10]},)"
      R"("b":{"dtype":"BF16","shape":[1],"data_offsets":[10,12]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  EXPECT_EQ(folder.Read("f"),
            LittleEndian(header.size(), 8) + header +
                std::string("\x00\x00\x80\x3f\x00\x00\x00\x40", 8) +
                "\x40\x40\x80\x3f");

  const auto file = SafetensorsFile::Open(folder.Path("f"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->tensors().size(), 4u);
}

TEST(SafetensorsWriterTest, EveryLengthOfHeaderIsPaddedToEight) {
  TestFolder folder;
  for (int n = 1; n <= 16; ++n) {
    const std::string name(n, 'n');
    const std::string path = folder.Path(name);
    auto writer = SafetensorsWriter::Create(path, {{name, Dtype::kF32, {1}}});
    ASSERT_TRUE(writer.ok()) << writer.status();
    const float value = 7;
    ASSERT_TRUE(writer->Append(name, &value, 4).ok());
    ASSERT_TRUE(writer->Finish().ok());
    const auto file = SafetensorsFile::Open(path);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->tensors()[0].file_offset % 8, 0);
  }
}

TEST(SafetensorsWriterTest, AllocatesTheWholeFileBeforeAnyTensor) {
  TestFolder folder;
  auto writer = SafetensorsWriter::Create(folder.Path("f"),
                                          {{"t", Dtype::kF32, {1000, 1000}}});
  ASSERT_TRUE(writer.ok());
  EXPECT_GT(std::filesystem::file_size(folder.Path("f")), 4'000'000u);

  EXPECT_EQ(SafetensorsWriter::Create(folder.Path("f"), {}).status().code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(SafetensorsWriter::Create(folder.Path("g"),
                                      {{"t", Dtype::kF32, {int64_t{1} << 56}}})
                .status()
                .code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(std::filesystem::exists(folder.Path("g")));
}

TEST(SafetensorsWriterDeathTest, AMissingOrSurplusByteIsABug) {
  TestFolder folder;
  auto writer =
      SafetensorsWriter::Create(folder.Path("f"), {{"t", Dtype::kU8, {4}}});
  ASSERT_TRUE(writer.ok());
  EXPECT_DEATH((void)writer->Append("t", "12345", 5), "check failed");
  ASSERT_TRUE(writer->Append("t", "123", 3).ok());
  EXPECT_DEATH((void)writer->Finish(), "check failed");
}

}  // namespace
}  // namespace lockstep
