#include "worker/checkpoint/state_hash.h"

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "worker/checkpoint/safetensors_writer.h"
#include "worker/data/test_files.h"

namespace lockstep {
namespace {

struct Filled {
  TensorSpec spec;
  std::string bytes;
};

void WriteFile(const std::string& path, const std::vector<Filled>& tensors) {
  std::vector<TensorSpec> specs;
  for (const Filled& t : tensors) specs.push_back(t.spec);
  std::filesystem::remove(path);
  auto writer = SafetensorsWriter::Create(path, specs);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const Filled& t : tensors) {
    ASSERT_TRUE(writer
                    ->Append(t.spec.name, t.bytes.data(),
                             static_cast<int64_t>(t.bytes.size()))
                    .ok());
  }
  ASSERT_TRUE(writer->Finish().ok());
}

std::string HashOf(const TestFolder& folder,
                   const std::vector<Filled>& tensors) {
  WriteFile(folder.Path("f"), tensors);
  const absl::StatusOr<std::string> hash = HashState(folder.Path("f"));
  EXPECT_TRUE(hash.ok()) << hash.status();
  return *hash;
}

const Filled kA = {{"a", Dtype::kF32, {2, 1}}, "12345678"};
const Filled kB = {{"b", Dtype::kU8, {3}}, "xyz"};

// Computed in Python as the header describes it.
TEST(StateHashTest, IsTheDescribedSha256) {
  TestFolder folder;
  EXPECT_EQ(HashOf(folder, {kA, kB}),
            "08546f71ff5f2caa252b34e5060f24ceeb3c9725d5f681c91edd944fe862a0fe");
}

TEST(StateHashTest, DoesNotDependOnHowTheStateIsSplit) {
  TestFolder folder;
  const std::string whole = HashOf(folder, {kA, kB});
  EXPECT_EQ(HashOf(folder, {kB, kA}), whole);

  std::filesystem::create_directory(folder.Path("shards"));
  WriteFile(folder.Path("shards/1.safetensors"), {kB});
  WriteFile(folder.Path("shards/2.safetensors"), {kA});
  folder.Write("shards/model.safetensors.index.json",
               R"({"weight_map":{"a":"2.safetensors","b":"1.safetensors"}})");
  EXPECT_EQ(*HashState(folder.Path("shards")), whole);

  // Another header: no metadata, entries and data in another order.
  const std::string header =
      R"({"b":{"shape":[3],"dtype":"U8","data_offsets":[0,3]},)"
      R"("a":{"dtype":"F32","shape":[2,1],"data_offsets":[3,11]}})";
  folder.Write("g", LittleEndian(header.size(), 8) + header + "xyz12345678");
  EXPECT_EQ(*HashState(folder.Path("g")), whole);
}

TEST(StateHashTest, DependsOnEveryNameTypeShapeAndBit) {
  TestFolder folder;
  const std::string base = HashOf(folder, {kA, kB});
  const std::vector<std::vector<Filled>> others = {
      {kA},
      {kA, {{"c", Dtype::kU8, {3}}, "xyz"}},
      {kA, {{"b", Dtype::kI8, {3}}, "xyz"}},
      {kA, {{"b", Dtype::kU8, {3, 1}}, "xyz"}},
      {kA, {{"b", Dtype::kU8, {3}}, "xyx"}},
      {{{"a", Dtype::kF32, {1, 2}}, "12345678"}, kB},
      {kA, kB, {{"", Dtype::kU8, {0}}, ""}},
  };
  for (const std::vector<Filled>& other : others) {
    EXPECT_NE(HashOf(folder, other), base);
  }
}

// More than the block that is read at once.
TEST(StateHashTest, CoversLargeTensorsToTheirEnd) {
  TestFolder folder;
  std::string bytes((3 << 20) + 5, 'x');
  const TensorSpec spec = {
      "t", Dtype::kU8, {static_cast<int64_t>(bytes.size())}};
  const std::string base = HashOf(folder, {{spec, bytes}});
  for (size_t at :
       {size_t{0}, (size_t{1} << 20) - 1, size_t{1} << 20, bytes.size() - 1}) {
    std::string changed = bytes;
    changed[at] ^= 1;
    EXPECT_NE(HashOf(folder, {{spec, changed}}), base) << at;
  }
}

}  // namespace
}  // namespace lockstep
