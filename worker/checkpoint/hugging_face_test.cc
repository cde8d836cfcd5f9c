#include "worker/checkpoint/hugging_face.h"

#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/checkpoint/initial_weights.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/checkpoint/safetensors_writer.h"
#include "worker/checkpoint/state_hash.h"
#include "worker/data/test_files.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

ModelConfig Config() {
  ModelConfig c;
  c.vocabulary = 11;
  c.position_max = 7;
  c.width = 6;
  c.layer_count = 2;
  c.SetPlainHeads(2);
  c.inner_width = 10;
  return c;
}

constexpr char kConfigJson[] = R"({"model_type": "gpt2", "vocab_size": 11,
  "n_positions": 7, "n_embd": 6, "n_layer": 2, "n_head": 2, "n_inner": 10,
  "eos_token_id": 3)";

// A tensor for a file made by hand.
struct FileTensor {
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  std::string bytes;
};
using FileTensors = std::map<std::string, FileTensor>;

std::string AsBytes(const float* values, int64_t n) {
  return std::string(reinterpret_cast<const char*>(values), 4 * n);
}

std::vector<float> FreshWeights(const ModelConfig& config) {
  const Layout layout = MakeLayout(config);
  std::vector<float> flat(layout.element_count);
  for (size_t u = 0; u < layout.units.size(); ++u) {
    InitializeUnit(config, layout, 1, static_cast<int>(u),
                   &flat[layout.units[u].range.offset]);
  }
  // Norms and biases that a mix-up would show.
  for (const Tensor& t : layout.tensors) {
    for (int64_t i = 0; i < t.element_count; ++i) {
      flat[t.offset + i] += static_cast<float>(0.001 * (t.offset + i));
    }
  }
  return flat;
}

absl::Status WriteAll(HuggingFaceWriter& writer, const ModelConfig& config,
                      const std::vector<float>& flat) {
  const Layout layout = MakeLayout(config);
  for (size_t u = 0; u < layout.units.size(); ++u) {
    RETURN_IF_ERROR(writer.WriteUnit(static_cast<int>(u),
                                     &flat[layout.units[u].range.offset]));
  }
  return writer.Finish();
}

// What a good folder holds.
FileTensors GoodTensors(const ModelConfig& config) {
  const std::vector<float> flat = FreshWeights(config);
  FileTensors tensors;
  for (const Tensor& t : MakeLayout(config).tensors) {
    tensors[t.name] = {Dtype::kF32, t.shape,
                       AsBytes(&flat[t.offset], t.element_count)};
  }
  return tensors;
}

void WriteTensors(const std::string& path, const FileTensors& tensors) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, t] : tensors) {
    specs.push_back({name, t.dtype, t.shape});
  }
  fs::remove(path);
  auto writer = SafetensorsWriter::Create(path, specs);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const auto& [name, t] : tensors) {
    ASSERT_TRUE(writer->Append(name, t.bytes.data(), t.bytes.size()).ok());
  }
  ASSERT_TRUE(writer->Finish().ok());
}

void WriteFolder(const TestFolder& folder, const FileTensors& tensors,
                 const std::string& more_config = "") {
  folder.Write("config.json", absl::StrCat(kConfigJson, more_config, "}"));
  WriteTensors(folder.Path("model.safetensors"), tensors);
}

std::vector<float> ReadAll(const HuggingFaceModel& model) {
  std::vector<float> flat(model.layout().element_count, 99.0f);
  const absl::Status read = model.ReadWeights(flat.data());
  EXPECT_TRUE(read.ok()) << read;
  return flat;
}

absl::Status OpenAndRead(const std::string& folder) {
  const absl::StatusOr<HuggingFaceModel> model = HuggingFaceModel::Open(folder);
  if (!model.ok()) return model.status();
  std::vector<float> flat(model->layout().element_count);
  return model->ReadWeights(flat.data());
}

TEST(HuggingFaceModelTest, ReadsEveryTensorToItsPlace) {
  TestFolder folder;
  WriteFolder(folder, GoodTensors(Config()));
  const auto model = HuggingFaceModel::Open(folder.path());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->config(), Config());

  // Padding too: what is read is what layout and initialisation say.
  std::vector<float> want(model->layout().element_count, 0.0f);
  const std::vector<float> fresh = FreshWeights(Config());
  for (const Tensor& t : model->layout().tensors) {
    std::copy_n(&fresh[t.offset], t.element_count, &want[t.offset]);
  }
  EXPECT_EQ(ReadAll(*model), want);
}

TEST(HuggingFaceModelTest, TakesBareNamesOldBuffersAndATiedHead) {
  TestFolder folder;
  FileTensors tensors = GoodTensors(Config());
  WriteFolder(folder, tensors);
  const std::vector<float> want =
      ReadAll(HuggingFaceModel::Open(folder.path()).value());

  FileTensors bare;
  for (const auto& [name, t] : tensors) {
    bare[name.substr(std::strlen("transformer."))] = t;
  }
  for (int layer = 0; layer < 2; ++layer) {
    bare[absl::StrCat("h.", layer, ".attn.bias")] = {
        Dtype::kU8, {1, 1, 7, 7}, std::string(49, '\1')};
    bare[absl::StrCat("h.", layer, ".attn.masked_bias")] = {
        Dtype::kF32, {}, std::string(4, '\0')};
  }
  bare["lm_head.weight"] = bare["wte.weight"];
  WriteFolder(folder, bare);
  EXPECT_EQ(ReadAll(HuggingFaceModel::Open(folder.path()).value()), want);
}

ModelConfig LlamaConfig(ModelFamily family) {
  ModelConfig c;
  c.family = family;
  c.vocabulary = 11;
  c.position_max = 7;
  c.width = 6;
  c.layer_count = 2;
  c.head_count = 4;
  c.key_value_head_count = 2;
  c.head_width = 4;
  c.inner_width = 10;
  c.tied_head = family == ModelFamily::kQwen2;
  c.qkv_bias = family == ModelFamily::kQwen2;
  return c;
}

TEST(HuggingFaceModelTest, ReadsBackALlamaAndAQwen2ThatItWrote) {
  for (const ModelFamily family : {ModelFamily::kLlama, ModelFamily::kQwen2}) {
    TestFolder folder;
    const ModelConfig config = LlamaConfig(family);
    const std::vector<float> fresh = FreshWeights(config);
    auto writer = HuggingFaceWriter::Create(
        {.temporary_folder = folder.Path("out"), .config = config});
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE(WriteAll(**writer, config, fresh).ok());

    const auto model = HuggingFaceModel::Open(folder.Path("out"));
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(model->config(), config);
    const std::vector<float> read = ReadAll(*model);
    for (const Tensor& t : model->layout().tensors) {
      for (int64_t i = 0; i < t.element_count; ++i) {
        ASSERT_EQ(read[t.offset + i], fresh[t.offset + i]) << t.name;
      }
    }
  }
}

TEST(HuggingFaceModelTest, OfALlamaIgnoresTablesOfOldFiles) {
  TestFolder folder;
  const ModelConfig config = LlamaConfig(ModelFamily::kLlama);
  auto writer = HuggingFaceWriter::Create(
      {.temporary_folder = folder.Path("out"), .config = config});
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE(WriteAll(**writer, config, FreshWeights(config)).ok());
  FileTensors tensors = GoodTensors(config);
  tensors["model.layers.1.self_attn.rotary_emb.inv_freq"] = {
      Dtype::kF32, {2}, std::string(8, '\1')};
  WriteTensors(folder.Path("out/model.safetensors"), tensors);
  EXPECT_TRUE(OpenAndRead(folder.Path("out")).ok());

  tensors["model.layers.1.self_attn.q_norm.weight"] = {
      Dtype::kF32, {2}, std::string(8, '\1')};
  WriteTensors(folder.Path("out/model.safetensors"), tensors);
  EXPECT_THAT(std::string(OpenAndRead(folder.Path("out")).message()),
              HasSubstr("q_norm.weight\": is none of the model"));
}

TEST(HuggingFaceModelTest, AnUntiedHeadIsReadAndRequired) {
  TestFolder folder;
  ModelConfig untied = Config();
  untied.tied_head = false;
  WriteFolder(folder, GoodTensors(untied), ", \"tie_word_embeddings\": false");
  const auto model = HuggingFaceModel::Open(folder.path());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->config(), untied);
  const Tensor& head =
      model->layout().tensors[model->layout().Find(TensorRole::kHeadWeight)];
  EXPECT_EQ(ReadAll(*model)[head.offset + 5],
            FreshWeights(untied)[head.offset + 5]);

  WriteFolder(folder, GoodTensors(Config()),
              ", \"tie_word_embeddings\": false");
  EXPECT_THAT(OpenAndRead(folder.path()).message(),
              HasSubstr("tensor \"lm_head.weight\" is missing"));
}

TEST(HuggingFaceModelTest, ConvertsBfloat16AndHalf) {
  TestFolder folder;
  FileTensors tensors = GoodTensors(Config());
  FileTensor& norm = tensors["transformer.ln_f.weight"];
  norm.dtype = Dtype::kBf16;
  norm.bytes.clear();
  for (int i = 0; i < 6; ++i) norm.bytes += LittleEndian(0x3f80 + i, 2);
  FileTensor& bias = tensors["transformer.ln_f.bias"];
  bias.dtype = Dtype::kF16;
  bias.bytes.clear();
  for (int i = 0; i < 6; ++i) bias.bytes += LittleEndian(0xbc00 + i, 2);
  WriteFolder(folder, tensors);

  const auto model = HuggingFaceModel::Open(folder.path());
  ASSERT_TRUE(model.ok()) << model.status();
  const std::vector<float> flat = ReadAll(*model);
  const Layout& layout = model->layout();
  for (int i = 0; i < 6; ++i) {
    const int w = layout.Find(TensorRole::kFinalNormWeight);
    const int b = layout.Find(TensorRole::kFinalNormBias);
    EXPECT_EQ(flat[layout.tensors[w].offset + i], 1.0f + i * 0x1p-7f);
    EXPECT_EQ(flat[layout.tensors[b].offset + i], -1.0f - i * 0x1p-10f);
  }
}

TEST(HuggingFaceModelTest, NamesATensorThatIsWrong) {
  struct Case {
    std::function<void(FileTensors&)> breaks;
    std::vector<std::string> said;
  };
  const Case cases[] = {
      {[](FileTensors& t) { t.erase("transformer.h.1.mlp.c_fc.bias"); },
       {"tensor \"transformer.h.1.mlp.c_fc.bias\" is missing", "shape [10]"}},
      {[](FileTensors& t) { t["score.weight"] = t["transformer.ln_f.bias"]; },
       {"model.safetensors: tensor \"score.weight\": is none of the model"}},
      {[](FileTensors& t) {
         t["transformer.h.2.ln_1.bias"] = t["transformer.h.1.ln_1.bias"];
       },
       {"tensor \"transformer.h.2.ln_1.bias\": is none of the model"}},
      // As a Linear layer would store it.
      {[](FileTensors& t) {
         t["transformer.h.0.mlp.c_fc.weight"].shape = {10, 6};
       },
       {"tensor \"transformer.h.0.mlp.c_fc.weight\": expected shape [6, 10]",
        "found [10, 6]"}},
      {[](FileTensors& t) { t["transformer.wpe.weight"].dtype = Dtype::kI32; },
       {"\"transformer.wpe.weight\": expected F32, BF16 or F16, found I32"}},
      {[](FileTensors& t) { t["ln_f.bias"] = t["transformer.ln_f.bias"]; },
       {"\"transformer.ln_f.bias\"", "\"ln_f.bias\" too"}},
      {[](FileTensors& t) {
         FileTensor head = t["transformer.wte.weight"];
         head.bytes[4 * 13 + 3] ^= 1;
         t["lm_head.weight"] = head;
       },
       {"tensor \"lm_head.weight\": element 13: expected the token embedding's",
        "tie_word_embeddings"}},
      {[](FileTensors& t) {
         t["lm_head.weight"] = t["transformer.wpe.weight"];
       },
       {"tensor \"lm_head.weight\": expected shape [11, 6]"}},
      {[](FileTensors& t) {
         const float nan = std::numeric_limits<float>::quiet_NaN();
         t["transformer.wpe.weight"].bytes.replace(4 * 5, 4, AsBytes(&nan, 1));
       },
       {"tensor \"transformer.wpe.weight\": element 5: expected a finite"}},
  };
  for (const Case& c : cases) {
    TestFolder folder;
    FileTensors tensors = GoodTensors(Config());
    c.breaks(tensors);
    WriteFolder(folder, tensors);
    const absl::Status status = OpenAndRead(folder.path());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(folder.path()));
    for (const std::string& said : c.said) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(said));
    }
  }
}

TEST(HuggingFaceModelTest, NamesTheFileThatIsMissingOrMalformed) {
  TestFolder folder;
  EXPECT_THAT(OpenAndRead(folder.path()).message(),
              HasSubstr(folder.Path("config.json") + ": cannot open"));
  folder.Write("config.json", absl::StrCat(kConfigJson, "}"));
  EXPECT_THAT(OpenAndRead(folder.path()).message(),
              HasSubstr("expected model.safetensors or"));
  WriteFolder(folder, GoodTensors(Config()), ", \"scale_attn_weights\": false");
  EXPECT_THAT(OpenAndRead(folder.path()).message(),
              HasSubstr(folder.Path("config.json") + ": scale_attn_weights"));
  WriteFolder(folder, GoodTensors(Config()));
  fs::resize_file(folder.Path("model.safetensors"), 5000);
  EXPECT_THAT(OpenAndRead(folder.path()).message(),
              HasSubstr(folder.Path("model.safetensors") + ": tensor"));
}

std::unique_ptr<HuggingFaceWriter> CreateWriter(
    const HuggingFaceWriter::Options& options) {
  auto writer = HuggingFaceWriter::Create(options);
  EXPECT_TRUE(writer.ok()) << writer.status();
  return *std::move(writer);
}

TEST(HuggingFaceWriterTest, WhatIsWrittenReadsBackTheSame) {
  TestFolder folder;
  for (bool tied : {true, false}) {
    ModelConfig config = Config();
    config.tied_head = tied;
    const std::string out = folder.Path(tied ? "tied" : "untied");
    const std::vector<float> flat = FreshWeights(config);
    auto writer = CreateWriter({.temporary_folder = out, .config = config});
    const absl::Status written = WriteAll(*writer, config, flat);
    ASSERT_TRUE(written.ok()) << written;
    writer.reset();  // The folder stays.

    const auto model = HuggingFaceModel::Open(out);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(model->config(), config);
    const std::vector<float> read = ReadAll(*model);
    for (const Tensor& t : model->layout().tensors) {
      EXPECT_EQ(
          0, std::memcmp(&read[t.offset], &flat[t.offset], 4 * t.element_count))
          << t.name;
    }
    const auto file = SafetensorsFile::Open(out + "/model.safetensors");
    ASSERT_TRUE(file.ok());
    EXPECT_EQ(file->tensors().size(), tied ? 28u : 29u);
  }
}

TEST(HuggingFaceWriterTest, CarriesOverWhatTheSourceFolderHas) {
  TestFolder folder;
  WriteFolder(folder, GoodTensors(Config()), ", \"my_note\": \"kept\"");
  folder.Write("tokenizer.json", "{tokens}");
  folder.Write("merges.txt", "a b\n");
  folder.Write("README.md", "not copied");
  const std::string out = folder.Path("out");
  const auto writer = CreateWriter({.temporary_folder = out,
                                    .config = Config(),
                                    .dropout = 0.5,
                                    .source_folder = folder.path()});
  ASSERT_TRUE(WriteAll(*writer, Config(), FreshWeights(Config())).ok());

  EXPECT_EQ(folder.Read("out/tokenizer.json"), "{tokens}");
  EXPECT_EQ(folder.Read("out/merges.txt"), "a b\n");
  EXPECT_FALSE(fs::exists(out + "/README.md"));
  EXPECT_FALSE(fs::exists(out + "/vocab.json"));
  const std::string config = folder.Read("out/config.json");
  EXPECT_THAT(config, HasSubstr("\"my_note\": \"kept\""));
  EXPECT_THAT(config, HasSubstr("\"eos_token_id\": 3"));
  EXPECT_THAT(config, HasSubstr("\"resid_pdrop\": 0.5"));
  EXPECT_EQ(*HashState(out), *HashState(folder.path()));
}

TEST(HuggingFaceWriterTest, AllocatesTheWeightsBeforeTheyAreThere) {
  TestFolder folder;
  const auto writer = CreateWriter(
      {.temporary_folder = folder.Path("out"), .config = Config()});
  EXPECT_GT(fs::file_size(folder.Path("out/model.safetensors")),
            4u * MakeLayout(Config()).parameter_count);
}

TEST(HuggingFaceWriterTest, LeavesNothingBehindWithoutAWrite) {
  TestFolder folder;
  const std::string out = folder.Path("out");
  CreateWriter({.temporary_folder = out, .config = Config()}).reset();
  EXPECT_FALSE(fs::exists(out));

  // Nor when it cannot be created: here for want of a source.
  EXPECT_EQ(HuggingFaceWriter::Create({.temporary_folder = out,
                                       .config = Config(),
                                       .source_folder = folder.Path("gone")})
                .status()
                .code(),
            absl::StatusCode::kNotFound);
  EXPECT_FALSE(fs::exists(out));
}

TEST(HuggingFaceWriterTest, NeverTouchesAFolderThatIsThere) {
  TestFolder folder;
  fs::create_directory(folder.Path("out"));
  folder.Write("out/precious", "x");
  const absl::Status status =
      HuggingFaceWriter::Create(
          {.temporary_folder = folder.Path("out"), .config = Config()})
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(status.message(), HasSubstr(folder.Path("out")));
  EXPECT_EQ(folder.Read("out/precious"), "x");
}

TEST(HuggingFaceWriterTest, ADiskTooSmallIsNoticedAtCreation) {
  TestFolder folder;
  ModelConfig huge = Config();
  huge.width = 1 << 16;
  huge.SetPlainHeads(2);
  huge.inner_width = 1 << 20;
  huge.layer_count = 1000;
  const absl::Status status =
      HuggingFaceWriter::Create(
          {.temporary_folder = folder.Path("out"), .config = huge})
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_FALSE(fs::exists(folder.Path("out")));
}

}  // namespace
}  // namespace lockstep
