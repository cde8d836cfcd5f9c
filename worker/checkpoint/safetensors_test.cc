#include "worker/checkpoint/safetensors.h"

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/data/test_files.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A file of this header, padded to a multiple of 8, and this data.
std::string FileOf(std::string header, const std::string& data) {
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return LittleEndian(header.size(), 8) + header + data;
}

// The data offsets of one tensor "t" are spelt out by each case.
std::string OneTensor(const std::string& dtype, const std::string& shape,
                      const std::string& offsets) {
  return absl::StrCat(R"({"t":{"dtype":")", dtype, R"(","shape":)", shape,
                      R"(,"data_offsets":)", offsets, "}}");
}

std::string Bytes(const SafetensorsFile& file, const TensorInfo& info) {
  std::string out(info.byte_count, '?');
  const absl::Status read = file.Read(info, 0, info.byte_count, out.data());
  EXPECT_TRUE(read.ok()) << read;
  return out;
}

TEST(SafetensorsTest, ReadsTheTestVector) {
  TestFolder folder;
  const std::string header =
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
      R"("b":{"dtype":"BF16","shape":[1],"data_offsets":[8,10]}})";
  ASSERT_EQ(header.size(), 109u);
  const std::string content = FileOf(
      header, std::string("\x00\x00\x80\x3f\x00\x00\x00\x40\x80\x3f", 10));
  ASSERT_EQ(content.size(), 130u);
  ASSERT_EQ(content.substr(0, 8), std::string("\x70\0\0\0\0\0\0\0", 8));

  const absl::StatusOr<SafetensorsFile> file =
      SafetensorsFile::Open(folder.Write("f", content));

  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(file->tensors().size(), 2u);
  const TensorInfo& a = file->tensors()[0];
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.dtype, Dtype::kF32);
  EXPECT_THAT(a.shape, ElementsAre(2));
  float values[2];
  ASSERT_TRUE(file->Read(a, 0, 8, values).ok());
  EXPECT_THAT(values, ElementsAre(1.0f, 2.0f));
  float second;
  ASSERT_TRUE(file->Read(a, 4, 4, &second).ok());
  EXPECT_EQ(second, 2.0f);
  const TensorInfo& b = file->tensors()[1];
  EXPECT_EQ(b.dtype, Dtype::kBf16);
  EXPECT_EQ(Bytes(*file, b), "\x80\x3f");
}

TEST(SafetensorsTest, TakesEverythingTheFormatAllows) {
  TestFolder folder;
  struct Case {
    std::string header;
    size_t data_bytes;
    size_t tensor_count;
  };
  const Case cases[] = {
      {"{}", 0, 0},
      {R"({"__metadata__":{"format":"pt","x":""}})", 0, 0},
      // Scalars, empty tensors, and types below a byte.
      {OneTensor("F64", "[]", "[0,8]"), 8, 1},
      {OneTensor("F32", "[3,0,2]", "[0,0]"), 0, 1},
      {OneTensor("F4", "[3,2]", "[0,3]"), 3, 1},
      {OneTensor("F6_E2M3", "[4]", "[0,3]"), 3, 1},
      // Entries in another order than their data; an empty tensor between.
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]},)"
       R"("b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
       R"("c":{"data_offsets":[1,1],"shape":[0],"dtype":"U8"}})",
       3, 3},
  };
  for (const Case& c : cases) {
    const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(
        folder.Write("f", FileOf(c.header, std::string(c.data_bytes, 'x'))));
    ASSERT_TRUE(file.ok()) << c.header << file.status();
    EXPECT_EQ(file->tensors().size(), c.tensor_count) << c.header;
  }
}

TEST(SafetensorsTest, RefusesWhatBreaksTheFormat) {
  TestFolder folder;
  const std::string good = OneTensor("F32", "[2]", "[0,8]");
  const std::string data(8, 'x');
  struct Case {
    std::string content;
    std::string said;
  };
  const Case cases[] = {
      {"", "has 0 bytes; expected at least 8"},
      {"1234567", "has 7 bytes; expected at least 8"},
      {LittleEndian(100'000'001, 8) + "{}",
       "byte 0: header length 100000001; expected at most 100000000"},
      {LittleEndian(~uint64_t{0}, 8) + "{}", "expected at most 100000000"},
      {LittleEndian(10, 8) + "{}",
       "byte 0: header length 10; the file has only 2 bytes after it"},
      {LittleEndian(0, 8), "byte 8: expected '{'"},
      {FileOf(" " + good, data), "byte 8: expected '{'"},
      {FileOf("[]", ""), "byte 8: expected '{'"},
      {FileOf("{\"a\":\"\xff\"}", ""), "byte 14: expected JSON in UTF-8"},
      {FileOf(R"({"a":})", ""), "byte 13: expected JSON in UTF-8"},
      {LittleEndian(10, 8) + std::string("{}\0\0\0\0\0\0\0\0", 10),
       "byte 10: expected JSON in UTF-8"},
      {FileOf(R"({"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
              R"("t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
              ""),
       "key \"t\" comes twice"},
      {FileOf(R"({"t":{"dtype":"U8","dtype":"U8","shape":[0],)"
              R"("data_offsets":[0,0]}})",
              ""),
       "key \"dtype\" comes twice"},
      {FileOf(R"({"__metadata__":{"a":1}})", ""),
       "__metadata__: \"a\": expected a string"},
      {FileOf(R"({"__metadata__":[]})", ""),
       "__metadata__: expected an object of strings"},
      {FileOf(R"({"t":3})", ""), "tensor \"t\": expected an object of dtype"},
      {FileOf(R"({"t":{"dtype":"U8","shape":[0]}})", ""),
       "tensor \"t\": expected an object of dtype, shape and data_offsets"},
      {FileOf(R"({"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":1}})",
              ""),
       "and no more"},
      {FileOf(OneTensor("F33", "[2]", "[0,8]"), data),
       "tensor \"t\": dtype: expected a known type such as \"F32\", got "
       "\"F33\""},
      {FileOf(OneTensor("F32", "[-2]", "[0,8]"), data), "shape: expected"},
      {FileOf(OneTensor("F32", "[2.0]", "[0,8]"), data), "shape: expected"},
      {FileOf(OneTensor("F32", "2", "[0,8]"), data), "shape: expected"},
      {FileOf(OneTensor("F32", "[9223372036854775808]", "[0,8]"), data),
       "shape: expected"},
      {FileOf(OneTensor("F32", "[4294967296,4294967296]", "[0,0]"), ""),
       "takes 2^63 bits or more"},
      // 2^62 x 4 bytes is 0 modulo 2^64.
      {FileOf(OneTensor("F32", "[4611686018427387904]", "[0,0]"), ""),
       "takes 2^63 bits or more"},
      {FileOf(OneTensor("F4", "[3]", "[0,1]"), "x"),
       "takes 12 bits; expected a multiple of 8"},
      {FileOf(OneTensor("F32", "[2]", "[0,4]"), "1234"),
       "tensor \"t\": data_offsets: F32[2] takes 8 bytes, got 4"},
      {FileOf(OneTensor("F32", "[2]", "[8,0]"), data),
       "expected [begin, end] with begin <= end, got [8,0]"},
      {FileOf(OneTensor("F32", "[2]", "[8]"), data), "expected [begin, end]"},
      {FileOf(OneTensor("F32", "[2]", "[0,8,8]"), data),
       "expected [begin, end]"},
      {FileOf(good, data.substr(1)),
       "tensor \"t\": data_offsets: ends at byte "
       "8 of the data; the file has only 7"},
      {FileOf(good, data + "x"),
       "bytes; expected 72, where the last tensor ends"},
      {FileOf(OneTensor("F32", "[2]", "[1,9]"), data + "x"),
       "tensor \"t\": data begins at byte 65; expected 64"},
      {FileOf(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
              R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
              "xyz"),
       "they overlap"},
      {FileOf(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
              R"("b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}})",
              "vwxyz"),
       "there is a hole"},
  };
  for (const Case& c : cases) {
    const std::string path = folder.Write("f", c.content);
    const absl::Status status = SafetensorsFile::Open(path).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.said;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.said));
    EXPECT_THAT(std::string(status.message()),
                testing::StartsWith(path + ": "));
  }
}

// Cut anywhere, a file is refused: nothing reads as a smaller whole.
TEST(SafetensorsTest, RefusesEveryTruncation) {
  TestFolder folder;
  const std::string content =
      FileOf(OneTensor("F32", "[2]", "[0,8]"), std::string(8, 'x'));
  ASSERT_TRUE(SafetensorsFile::Open(folder.Write("f", content)).ok());
  for (size_t n = 0; n < content.size(); ++n) {
    const absl::Status status =
        SafetensorsFile::Open(folder.Write("f", content.substr(0, n))).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << n;
  }
}

TEST(SafetensorsTest, AFileCutAfterOpeningIsAnErrorAndNotASignal) {
  TestFolder folder;
  const std::string path = folder.Write(
      "f", FileOf(OneTensor("F32", "[2]", "[0,8]"), std::string(8, 'x')));
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok());
  std::filesystem::resize_file(path, 66);
  char out[8];
  EXPECT_EQ(file->Read(file->tensors()[0], 0, 8, out).code(),
            absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace lockstep
