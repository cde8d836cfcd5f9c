// The decoder against values computed in float64 by PyTorch: the loss and the
// gradient of the first step of tests/reference/.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/layout.h"
#include "common/model_config.h"
#include "kernels/device.h"
#include "worker/model/decoder.h"
#include "worker/model/whole_parameters.h"

namespace lockstep {
namespace {

// A reference case, and the rows of a micro-batch: how the 8 rows of the step
// are split must not matter.
using Case = std::tuple<const char*, int64_t>;

class DecoderReferenceTest : public testing::TestWithParam<Case> {
 protected:
  std::string ReadFile(const std::string& name) const;
  std::map<std::string, std::vector<float>> ReadTensors(
      const std::string& name) const;
  ModelConfig ReadConfig() const;
};

std::string DecoderReferenceTest::ReadFile(const std::string& name) const {
  std::ifstream file(
      absl::StrCat("tests/reference/", std::get<0>(GetParam()), "/", name),
      std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Float32 tensors by name; for files that are known to be right.
std::map<std::string, std::vector<float>> DecoderReferenceTest::ReadTensors(
    const std::string& name) const {
  const std::string file = ReadFile(name);
  uint64_t header_size;
  std::memcpy(&header_size, file.data(), sizeof(header_size));
  const auto header = nlohmann::json::parse(file.substr(8, header_size));
  std::map<std::string, std::vector<float>> tensors;
  for (const auto& [key, value] : header.items()) {
    if (key == "__metadata__") continue;
    EXPECT_EQ(value["dtype"], "F32");
    const size_t begin = value["data_offsets"][0];
    const size_t end = value["data_offsets"][1];
    std::vector<float>& tensor = tensors[key];
    tensor.resize((end - begin) / sizeof(float));
    std::memcpy(tensor.data(), file.data() + 8 + header_size + begin,
                end - begin);
  }
  return tensors;
}

ModelConfig DecoderReferenceTest::ReadConfig() const {
  const auto json = nlohmann::json::parse(ReadFile("config.json"));
  ModelConfig config;
  if (json["model_type"] == "llama") {
    config.family = ModelFamily::kLlama;
    config.vocabulary = json["vocab_size"];
    config.position_max = json["max_position_embeddings"];
    config.width = json["hidden_size"];
    config.layer_count = json["num_hidden_layers"];
    config.SetPlainHeads(json["num_attention_heads"]);
    config.key_value_head_count = json["num_key_value_heads"];
    config.inner_width = json["intermediate_size"];
    config.norm_epsilon = json["rms_norm_eps"];
    config.rotary_base = json["rope_theta"];
    config.tied_head = json["tie_word_embeddings"];
    return config;
  }
  config.vocabulary = json["vocab_size"];
  config.position_max = json["n_positions"];
  config.width = json["n_embd"];
  config.layer_count = json["n_layer"];
  config.SetPlainHeads(json["n_head"]);
  config.inner_width = 4 * config.width;
  config.norm_epsilon = json["layer_norm_epsilon"];
  config.tied_head = json["tie_word_embeddings"];
  return config;
}

// Adds contributions up in double.
class SummingSink : public GradientSink {
 public:
  explicit SummingSink(const Layout& layout) {
    for (const Tensor& tensor : layout.tensors) {
      sums_.emplace_back(tensor.element_count);
    }
  }
  absl::Status Contribute(int tensor, const float* gradient) override {
    for (size_t i = 0; i < sums_[tensor].size(); ++i) {
      sums_[tensor][i] += gradient[i];
    }
    return absl::OkStatus();
  }
  absl::Status UnitDone(int) override { return absl::OkStatus(); }
  const std::vector<double>& sum(int tensor) const { return sums_[tensor]; }

 private:
  std::vector<std::vector<double>> sums_;
};

TEST_P(DecoderReferenceTest, FirstStepIsAsInFloat64) {
  const int64_t rows = std::get<1>(GetParam());
  const auto expected = nlohmann::json::parse(ReadFile("expected.json"));
  const int64_t step_rows = expected["rows"];
  const int64_t row_tokens = expected["row_tokens"];
  const ModelConfig config = ReadConfig();
  const Layout layout = MakeLayout(config);
  auto device = kernels::CreateCpuDevice(2);
  ASSERT_TRUE(device.ok()) << device.status();
  auto stream = (*device)->CreateStream();
  ASSERT_TRUE(stream.ok()) << stream.status();
  auto parameters = (*device)->Allocate(layout.element_count * sizeof(float));
  ASSERT_TRUE(parameters.ok()) << parameters.status();
  const auto weights = ReadTensors("model.safetensors");
  ASSERT_EQ(weights.size(), layout.tensors.size());
  for (const Tensor& tensor : layout.tensors) {
    const std::vector<float>& from = weights.at(tensor.name);
    ASSERT_EQ(std::ssize(from), tensor.element_count) << tensor.name;
    std::copy(from.begin(), from.end(),
              (*parameters)->as<float>() + tensor.offset);
  }
  const std::string token_file = ReadFile("tokens.i32");
  std::vector<int32_t> tokens(step_rows * row_tokens);
  std::memcpy(tokens.data(), token_file.data(),
              tokens.size() * sizeof(int32_t));
  auto source = WholeParameters::Create(layout, Products::kFloat32, **stream);
  ASSERT_TRUE(source.ok()) << source.status();
  ASSERT_TRUE((*source)->Set((*parameters)->as<float>()).ok());
  auto decoder =
      Decoder::Create(config, layout, rows, row_tokens - 1, **stream, **source);
  ASSERT_TRUE(decoder.ok()) << decoder.status();

  SummingSink sink(layout);
  LossSum loss;
  for (int64_t row = 0; row < step_rows; row += rows) {
    ASSERT_TRUE((*decoder)->Forward(tokens.data() + row * row_tokens).ok());
    const auto part = (*decoder)->Backward(sink);
    ASSERT_TRUE(part.ok()) << part.status();
    loss.nats += part->nats;
    loss.token_count += part->token_count;
  }

  const auto& first = expected["log"][0];
  EXPECT_EQ(loss.token_count, first["loss_tokens"].get<int64_t>());
  EXPECT_NEAR(loss.nats / loss.token_count, first["loss"].get<double>(), 2e-5);
  double norm = 0;
  const auto gradients = ReadTensors("expected_first_gradient.safetensors");
  for (int i = 0; i < std::ssize(layout.tensors); ++i) {
    const std::vector<float>& right = gradients.at(layout.tensors[i].name);
    double error = 0, size = 0;
    for (size_t k = 0; k < right.size(); ++k) {
      const double ours = sink.sum(i)[k] / loss.token_count;
      error += (ours - right[k]) * (ours - right[k]);
      size += double{right[k]} * right[k];
      norm += ours * ours;
    }
    EXPECT_LT(std::sqrt(error), 2e-5 * std::sqrt(size))
        << layout.tensors[i].name;
  }
  EXPECT_NEAR(std::sqrt(norm), first["grad_norm"].get<double>(), 2e-5);
}

INSTANTIATE_TEST_SUITE_P(CasesAndRows, DecoderReferenceTest,
                         testing::Combine(testing::Values("gpt2_pretrain",
                                                          "llama_pretrain"),
                                          testing::Values(1, 2, 4, 8)));

}  // namespace
}  // namespace lockstep
