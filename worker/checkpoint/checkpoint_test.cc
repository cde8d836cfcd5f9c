#include "worker/checkpoint/checkpoint.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/checkpoint/safetensors_writer.h"
#include "worker/data/test_files.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelConfig SmallConfig() {
  ModelConfig c;
  c.vocabulary = 37;
  c.position_max = 9;
  c.width = 12;
  c.layer_count = 2;
  c.SetPlainHeads(2);
  c.inner_width = 20;
  return c;
}

ModelConfig SmallLlama() {
  ModelConfig c;
  c.family = ModelFamily::kLlama;
  c.vocabulary = 37;
  c.position_max = 32;
  c.width = 12;
  c.layer_count = 2;
  c.SetPlainHeads(2);
  c.inner_width = 20;
  c.tied_head = false;
  return c;
}

// What element `i` of a tensor is.
float Value(int kind, int tensor, int64_t i) {
  return static_cast<float>(kind * 1'000'000 + tensor * 10'000 + i);
}

CheckpointInfo Info(const ModelConfig& model) {
  CheckpointInfo info;
  info.job = "j1";
  info.generation = 3;
  info.step_count = 10;
  info.spec_digest = "spec";
  info.data_digest = "data";
  info.numeric_class = "cpu/test";
  info.model = model;
  info.dropout = 0.25;
  info.source_folder = "/models/a";
  info.update_count = 9;
  info.skipped_in_a_row = 1;
  info.ledger = {{1, 1, 0, 4, {{"w0"}}, {{0, 8}}},
                 {3, 1, 4, 10, {{"w0"}, {"w1"}}, {{0, 4}, {4, 4}}}};
  const Layout layout = MakeLayout(model);
  for (size_t t = 0; t < layout.tensors.size(); ++t) {
    info.unit_powers.push_back(std::vector<int32_t>(t % 5, -7));
  }
  return info;
}

// A state cut into pieces of up to `cut` elements, dealt to `world` parts.
void WriteParts(const std::string& folder, const Layout& layout, int world,
                int64_t cut) {
  fs::create_directories(folder);
  int dealt = 0;
  std::vector<std::vector<CheckpointPiece>> pieces(world);
  std::vector<std::unique_ptr<std::vector<float>>> memory;
  for (int t = 0; t < std::ssize(layout.tensors); ++t) {
    const int64_t n = layout.tensors[t].element_count;
    for (int64_t begin = 0; begin < n; begin += cut) {
      CheckpointPiece piece{t, begin, std::min(cut, n - begin), {}};
      for (int kind = 0; kind < kStateKindCount; ++kind) {
        auto& values = *memory.emplace_back(
            std::make_unique<std::vector<float>>(piece.element_count));
        for (int64_t i = 0; i < piece.element_count; ++i) {
          values[i] = Value(kind, t, begin + i);
        }
        piece.values[kind] = values.data();
      }
      pieces[dealt++ % world].push_back(piece);
    }
  }
  for (int rank = 0; rank < world; ++rank) {
    ASSERT_EQ(WriteCheckpointPart(folder, rank, world, layout, pieces[rank]),
              absl::OkStatus());
  }
}

std::string WriteGood(const TestFolder& folder, int world = 3) {
  const std::string final_path = folder.Path(CheckpointName(10));
  const std::string temporary = folder.Path("temporary");
  WriteParts(temporary, MakeLayout(SmallConfig()), world, 50);
  EXPECT_EQ(CommitCheckpoint(temporary, Info(SmallConfig()), world, final_path),
            absl::OkStatus());
  return final_path;
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void WriteFile(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

TEST(CheckpointTest, AnyoneReadsWhatAnyNumberOfRanksHasWritten) {
  for (const ModelConfig& model : {SmallConfig(), SmallLlama()}) {
    const Layout layout = MakeLayout(model);
    for (const int world : {1, 3, 40}) {
      for (const int64_t cut : {7, 50, 1'000'000}) {
        TestFolder folder;
        const std::string final_path = folder.Path("step");
        WriteParts(folder.Path("new"), layout, world, cut);
        ASSERT_EQ(CommitCheckpoint(folder.Path("new"), Info(model), world,
                                   final_path),
                  absl::OkStatus());
        EXPECT_FALSE(fs::exists(folder.Path("new")));

        const auto checkpoint = Checkpoint::Open(final_path);
        ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
        EXPECT_EQ(checkpoint->info(), Info(model));
        EXPECT_EQ(checkpoint->part_count(), world);
        EXPECT_EQ(checkpoint->digest().size(), 64u);
        EXPECT_EQ(checkpoint->Verify(), absl::OkStatus());
        for (int t = 0; t < std::ssize(layout.tensors); ++t) {
          const int64_t n = layout.tensors[t].element_count;
          for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, n},
                                           {n / 3, n - n / 4},
                                           {n, n}}) {
            for (int kind = 0; kind < kStateKindCount; ++kind) {
              std::vector<float> values(end - begin);
              ASSERT_EQ(
                  checkpoint->Read(kind, t, begin, end - begin, values.data()),
                  absl::OkStatus());
              for (int64_t i = begin; i < end; ++i) {
                ASSERT_EQ(values[i - begin], Value(kind, t, i));
              }
            }
          }
        }
      }
    }
  }
}

TEST(CheckpointTest, WhatIsNotWholeIsNoCheckpoint) {
  const auto open = [](const std::string& path) {
    const auto checkpoint = Checkpoint::Open(path);
    return checkpoint.ok() ? checkpoint->Verify() : checkpoint.status();
  };
  const std::string part = "part-00001-of-00003.safetensors";
  {
    TestFolder folder;
    const std::string path = WriteGood(folder);
    fs::remove(absl::StrCat(path, "/manifest.json"));
    EXPECT_EQ(open(path).code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(open(path).message()), HasSubstr("manifest.json"));
  }
  {
    TestFolder folder;
    const std::string path = WriteGood(folder);
    fs::remove(absl::StrCat(path, "/", part));
    EXPECT_EQ(open(path).code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(open(path).message()), HasSubstr(part));
  }
  {
    TestFolder folder;
    const std::string path = WriteGood(folder);
    const std::string file = absl::StrCat(path, "/", part);
    fs::resize_file(file, fs::file_size(file) - 4);
    EXPECT_EQ(open(path).code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(open(path).message()),
                AllOf(HasSubstr(part), HasSubstr("bytes, as the manifest")));
  }
  {
    // In the values, where only the hash shows it.
    TestFolder folder;
    const std::string path = WriteGood(folder);
    const std::string file = absl::StrCat(path, "/", part);
    std::string content = ReadFile(file);
    content[content.size() - 100] ^= 1;
    WriteFile(file, content);
    EXPECT_EQ(open(path).code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(open(path).message()),
                AllOf(HasSubstr(part), HasSubstr("SHA-256")));
  }
  {
    // A part of another checkpoint with as many bytes.
    TestFolder folder;
    const std::string path = WriteGood(folder);
    fs::copy_file(absl::StrCat(path, "/part-00000-of-00003.safetensors"),
                  absl::StrCat(path, "/", part),
                  fs::copy_options::overwrite_existing);
    EXPECT_EQ(open(path).code(), absl::StatusCode::kDataLoss);
  }
}

TEST(CheckpointTest, PartsThatLackOrRepeatElementsAreRefusedByName) {
  const Layout layout = MakeLayout(SmallConfig());
  for (const bool twice : {false, true}) {
    TestFolder folder;
    const std::string path = folder.Path("new");
    WriteParts(path, layout, 1, 50);
    // The second part has nothing, or what the first has too.
    std::vector<float> values(50);
    std::vector<CheckpointPiece> more;
    if (twice) {
      more.push_back(
          {0, 100, 50, {values.data(), values.data(), values.data()}});
    } else {
      fs::remove_all(path);
      fs::create_directories(path);
      ASSERT_EQ(WriteCheckpointPart(path, 0, 2, layout, {}), absl::OkStatus());
    }
    if (twice) {
      fs::rename(path + "/part-00000-of-00001.safetensors",
                 path + "/part-00000-of-00002.safetensors");
      fs::rename(path + "/part-00000-of-00001.safetensors.json",
                 path + "/part-00000-of-00002.safetensors.json");
    }
    ASSERT_EQ(WriteCheckpointPart(path, 1, 2, layout, more), absl::OkStatus());
    ASSERT_EQ(
        CommitCheckpoint(path, Info(SmallConfig()), 2, folder.Path("step")),
        absl::OkStatus());

    const absl::Status status = Checkpoint::Open(folder.Path("step")).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("parameter/transformer.wte.weight once"));
  }
}

TEST(CheckpointTest, AManifestThatIsNoneIsRefusedByField) {
  TestFolder folder;
  const std::string path = WriteGood(folder);
  const std::string file = path + "/manifest.json";
  const std::string good = ReadFile(file);
  const struct {
    std::string from, to, says;
  } kCases[] = {
      {good, "{", "manifest.json"},
      {good, "[]", "expected a JSON object"},
      {"\"lockstep checkpoint\"", "\"other\"", "format: expected lockstep"},
      {"\"version\": 1", "\"version\": 2", "version: expected 1"},
      {"\"step_count\": 10", "\"step_count\": -1", "step_count: expected"},
      {"\"step_count\"", "\"steps\"", "step_count is missing"},
      {"\"job\": \"j1\"", "\"job\": 1", "job: expected text"},
      {"\"first_step\": 4", "\"first_step\": 5", "ledger: expected rows"},
      {"\"end_step\": 10", "\"end_step\": 9", "ledger: expected rows up to"},
      {"\"n_layer\": 2", "\"n_layer\": \"x\"", "n_layer"},
      {"\"transformer.wte.weight\"", "\"other\"", "transformer.wte.weight"},
      {"\"name\": \"part", "\"name\": \"../part", "parts: name"},
      // Sound, but not what was written.
      {"\"job\": \"j1\"", "\"job\": \"j2\"", "not those of its own sha256"},
      {"\"sha256\"", "\"sha1\"", "sha256"},
  };
  for (const auto& c : kCases) {
    ASSERT_NE(good.find(c.from), std::string::npos) << c.from;
    WriteFile(file, absl::StrReplaceAll(good, {{c.from, c.to}}));
    const absl::Status status = Checkpoint::Open(path).status();
    EXPECT_FALSE(status.ok()) << c.says;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(file), HasSubstr(c.says)));
  }
}

TEST(CheckpointTest, NothingIsCommittedThatIsNotThereAsItsRankLeftIt) {
  const Layout layout = MakeLayout(SmallConfig());
  const CheckpointInfo info = Info(SmallConfig());
  TestFolder folder;
  const std::string path = folder.Path("new");
  WriteParts(path, layout, 2, 50);
  EXPECT_EQ(CommitCheckpoint(path, info, 3, folder.Path("step")).code(),
            absl::StatusCode::kNotFound);
  fs::resize_file(path + "/part-00001-of-00002.safetensors", 100);
  EXPECT_EQ(CommitCheckpoint(path, info, 2, folder.Path("step")).code(),
            absl::StatusCode::kDataLoss);
  EXPECT_FALSE(fs::exists(folder.Path("step")));

  // Another is never replaced.
  TestFolder other;
  const std::string there = WriteGood(other);
  WriteParts(other.Path("new"), layout, 1, 50);
  EXPECT_EQ(CommitCheckpoint(other.Path("new"), info, 1, there).code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(Checkpoint::Open(there)->Verify().ok());
}

TEST(CheckpointTest, WritingAndVerifyingEndWhenTold) {
  const auto enough = [] { return absl::CancelledError("enough"); };
  TestFolder folder;
  std::vector<float> values(5000);
  const std::vector<CheckpointPiece> pieces = {
      {0, 0, 37 * 12, {values.data(), values.data(), values.data()}}};
  EXPECT_EQ(WriteCheckpointPart(folder.path(), 0, 1, MakeLayout(SmallConfig()),
                                pieces, enough),
            enough());
  TestFolder other;
  EXPECT_EQ(Checkpoint::Open(WriteGood(other))->Verify(enough), enough());
}

TEST(CheckpointTest, CheckpointsAreListedNewestFirst) {
  TestFolder folder;
  EXPECT_THAT(ListCheckpoints(folder.Path("none")).value(), ElementsAre());
  for (const char* name :
       {"step-000000000010", "step-000000000200", "step-000000000030",
        "step-31", "step-x", "model", "step-0000000000100"}) {
    fs::create_directory(folder.Path(name));
  }
  EXPECT_THAT(ListCheckpoints(folder.path()).value(), ElementsAre(200, 30, 10));
  EXPECT_EQ(CheckpointName(7), "step-000000000007");
}

}  // namespace
}  // namespace lockstep
