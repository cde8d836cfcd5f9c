#include "worker/checkpoint/tensor_set.h"

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/checkpoint/safetensors_writer.h"
#include "worker/data/test_files.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

// One byte tensors of these names, each holding its name's first letter.
void WriteTensors(const std::string& path,
                  const std::vector<std::string>& names) {
  std::vector<TensorSpec> specs;
  for (const std::string& name : names) {
    specs.push_back({name, Dtype::kU8, {1}});
  }
  std::filesystem::remove(path);
  auto writer = SafetensorsWriter::Create(path, specs);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const std::string& name : names) {
    ASSERT_TRUE(writer->Append(name, name.data(), 1).ok());
  }
  ASSERT_TRUE(writer->Finish().ok());
}

constexpr char kFirst[] = "model-00001-of-00002.safetensors";
constexpr char kSecond[] = "model-00002-of-00002.safetensors";
constexpr char kIndex[] = "model.safetensors.index.json";

std::string IndexOf(const std::string& weight_map) {
  return absl::StrCat(R"({"metadata":{},"weight_map":)", weight_map, "}");
}

TEST(TensorSetTest, OneFileAFolderAndShardsAreTheSameSet) {
  TestFolder folder;
  WriteTensors(folder.Path("single.safetensors"), {"a", "b", "c"});
  std::filesystem::create_directory(folder.Path("one"));
  WriteTensors(folder.Path("one/model.safetensors"), {"a", "b", "c"});
  std::filesystem::create_directory(folder.Path("two"));
  WriteTensors(folder.Path(absl::StrCat("two/", kFirst)), {"b"});
  WriteTensors(folder.Path(absl::StrCat("two/", kSecond)), {"a", "c"});
  folder.Write(absl::StrCat("two/", kIndex),
               IndexOf(absl::StrCat(R"({"a":")", kSecond, R"(","b":")", kFirst,
                                    R"(","c":")", kSecond, "\"}")));

  for (const char* name : {"single.safetensors", "one", "two"}) {
    const absl::StatusOr<TensorSet> set = TensorSet::Open(folder.Path(name));
    ASSERT_TRUE(set.ok()) << set.status();
    std::string read;
    for (const auto& [tensor, entry] : set->tensors()) {
      char value;
      ASSERT_TRUE(entry.file->Read(*entry.info, 0, 1, &value).ok());
      EXPECT_EQ(tensor, std::string(1, value));
      read += value;
    }
    EXPECT_EQ(read, "abc") << name;
  }
}

TEST(TensorSetTest, RefusesAnIndexThatDisagreesWithItsFiles) {
  TestFolder folder;
  WriteTensors(folder.Path(kFirst), {"a"});
  WriteTensors(folder.Path(kSecond), {"b"});
  const std::string first = absl::StrCat("\"", kFirst, "\"");
  const std::string second = absl::StrCat("\"", kSecond, "\"");
  struct Case {
    std::string index;
    std::string said;
  };
  const Case cases[] = {
      {"{", "byte 1: expected JSON"},
      {"[]", "expected an object with a weight_map object"},
      {R"({"weight_map":[]})", "expected an object with a weight_map object"},
      {IndexOf(R"({"a":3})"), "\"a\": expected the name of a file"},
      {IndexOf(R"({"a":"../x"})"), "\"a\": expected the name of a file"},
      {IndexOf("{\"a\":" + first + ",\"a\":" + first + "}"),
       "key \"a\" comes twice"},
      {IndexOf("{\"a\":" + first + ",\"b\":\"gone.safetensors\"}"),
       "gone.safetensors: cannot open"},
      {IndexOf("{\"a\":" + second + ",\"b\":" + second + "}"),
       "\"a\": " + folder.Path(kSecond) + " has no such tensor"},
      {IndexOf("{\"a\":" + second + ",\"b\":" + first + "}"),
       "\"a\": " + folder.Path(kSecond) + " has no such tensor"},
      {IndexOf("{\"a\":" + first + ",\"b\":" + second + ",\"c\":" + first +
               "}"),
       "\"c\": " + folder.Path(kFirst) + " has no such tensor"},
  };
  for (const Case& c : cases) {
    folder.Write(kIndex, c.index);
    const absl::Status status = TensorSet::Open(folder.path()).status();
    EXPECT_FALSE(status.ok()) << c.index;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.said));
  }

  folder.Write(kIndex, IndexOf("{\"a\":" + first + ",\"b\":" + second + "}"));
  EXPECT_TRUE(TensorSet::Open(folder.path()).ok());
  WriteTensors(folder.Path(kSecond), {"b", "surplus"});
  EXPECT_THAT(TensorSet::Open(folder.path()).status().message(),
              HasSubstr("tensor \"surplus\" is not in the weight_map"));
  WriteTensors(folder.Path(kSecond), {"a", "b"});
  EXPECT_THAT(TensorSet::Open(folder.path()).status().message(),
              HasSubstr("tensor \"a\" is both in"));
}

TEST(TensorSetTest, RefusesAFolderOfNeitherOrBothForms) {
  TestFolder folder;
  const absl::Status neither = TensorSet::Open(folder.path()).status();
  EXPECT_EQ(neither.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(neither.message(), HasSubstr("found neither"));
  WriteTensors(folder.Path("model.safetensors"), {"a"});
  folder.Write(kIndex, IndexOf("{}"));
  EXPECT_THAT(TensorSet::Open(folder.path()).status().message(),
              HasSubstr("has both"));
  EXPECT_EQ(TensorSet::Open(folder.Path("absent")).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace lockstep
