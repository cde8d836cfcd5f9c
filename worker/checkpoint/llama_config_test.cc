#include "worker/checkpoint/llama_config.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

// As Llama-3.2-1B has it.
Json Llama32() {
  return Json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama",
    "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 128000, "eos_token_id": [128001, 128008],
    "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 8192,
    "max_position_embeddings": 131072, "mlp_bias": false,
    "num_attention_heads": 32, "num_hidden_layers": 16,
    "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0,
      "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
      "rope_type": "llama3"},
    "rope_theta": 500000.0, "tie_word_embeddings": true,
    "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 128256})");
}

ModelConfig Want() {
  ModelConfig c;
  c.family = ModelFamily::kLlama;
  c.vocabulary = 128256;
  c.position_max = 131072;
  c.width = 2048;
  c.layer_count = 16;
  c.head_count = 32;
  c.key_value_head_count = 8;
  c.head_width = 64;
  c.inner_width = 8192;
  c.norm_epsilon = 1e-5;
  c.rotary_base = 500000;
  c.rotary_scaling = RotaryScaling{.factor = 32};
  return c;
}

TEST(LlamaConfigTest, ReadsALlama) {
  const auto config = ParseLlamaConfig(Llama32());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(*config, Want());
}

TEST(LlamaConfigTest, ReadsTheNewerSpellingOfRotaryPositions) {
  Json json = Llama32();
  Json parameters = json["rope_scaling"];
  parameters["rope_theta"] = json["rope_theta"];
  json.erase("rope_scaling");
  json.erase("rope_theta");
  json["rope_parameters"] = parameters;
  const auto config = ParseLlamaConfig(json);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(*config, Want());

  json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 7}};
  const auto plain = ParseLlamaConfig(json);
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->rotary_base, 7);
  EXPECT_FALSE(plain->rotary_scaling.has_value());
}

TEST(LlamaConfigTest, ReadsAQwen2) {
  const auto config = ParseLlamaConfig(Json::parse(R"({
    "model_type": "qwen2", "hidden_act": "silu", "hidden_size": 896,
    "intermediate_size": 4864, "max_position_embeddings": 32768,
    "max_window_layers": 24, "num_attention_heads": 14,
    "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0, "sliding_window": 32768,
    "tie_word_embeddings": true, "use_sliding_window": false,
    "layer_types": ["full_attention", "full_attention"],
    "vocab_size": 151936})"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->family, ModelFamily::kQwen2);
  EXPECT_EQ(config->head_width, 64);
  EXPECT_EQ(config->key_value_head_count, 2);
  EXPECT_TRUE(config->qkv_bias);
  EXPECT_FALSE(config->attention_out_bias);
  EXPECT_FALSE(config->inner_bias);
  EXPECT_EQ(config->rotary_base, 1e6);
}

TEST(LlamaConfigTest, WhatIsAbsentHasTheDefaultOfTransformers) {
  const auto config = ParseLlamaConfig(Json{{"model_type", "llama"}});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->vocabulary, 32000);
  EXPECT_EQ(config->key_value_head_count, 32);
  EXPECT_EQ(config->head_width, 128);
  EXPECT_EQ(config->norm_epsilon, 1e-6);
  EXPECT_FALSE(config->tied_head);
}

TEST(LlamaConfigTest, WhatWouldNotBeTrainedExactlyIsRefusedByName) {
  const std::pair<const char*, const char*> kCases[] = {
      {R"({"hidden_act": "gelu"})", "hidden_act: expected \"silu\""},
      {R"({"pretraining_tp": 2})", "pretraining_tp: expected 1"},
      {R"({"quantization_config": {"bits": 4}})", "quantization_config"},
      {R"({"rope_scaling": {"type": "linear", "factor": 2}})",
       "rope_scaling: rope_type: expected \"default\" or \"llama3\", got "
       "\"linear\""},
      {R"({"rope_scaling": {"rope_type": "llama3", "factor": 8}})",
       "rope_scaling: low_freq_factor: expected a number, got null"},
      {R"({"rope_scaling": {"rope_type": "llama3", "type": "linear"}})",
       "the same as rope_type"},
      {R"({"rope_parameters": {"rope_theta": 5}})",
       "rope_theta: expected the same as in rope_parameters, 5"},
      {R"({"rope_theta": null, "rope_parameters": {"rope_theta": 5}})",
       "rope_scaling: expected null"},
      {R"({"rope_theta": null, "rope_scaling": null,
           "rope_parameters": {"partial_rotary_factor": 0.5}})",
       "rope_parameters: partial_rotary_factor: expected 1"},
      {R"({"partial_rotary_factor": 0.5})",
       "partial_rotary_factor: expected 1"},
      {R"({"num_key_value_heads": 5})",
       "num_attention_heads: expected a multiple of num_key_value_heads=5"},
      {R"({"head_dim": 7})", "head_dim: expected an even number"},
      {R"({"head_dim": null, "hidden_size": 2047})",
       "head_dim: expected a number"},
      {R"({"num_attention_heads": 0})", "num_attention_heads: expected 1 to"},
      {R"({"vocab_size": "many"})", "vocab_size: expected a whole number"},
      {R"({"rms_norm_eps": 0})", "rms_norm_eps: expected 1e-12 to 0.1"},
      {R"({"rope_theta": 0.5})", "rope_theta: expected 1 to 1e12"},
      {R"({"model_type": "mistral"})", "model_type: expected \"llama\""},
      {R"({"model_type": "qwen2", "use_sliding_window": true})",
       "use_sliding_window: expected false"},
      {R"({"model_type": "qwen2", "layer_types": ["sliding_attention"]})",
       "layer_types: expected \"full_attention\" for every layer"},
  };
  for (const auto& [change, said] : kCases) {
    Json json = Llama32();
    json.update(Json::parse(change));
    const absl::Status status = ParseLlamaConfig(json).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << change;
    EXPECT_THAT(std::string(status.message()), HasSubstr(said)) << change;
  }
}

TEST(LlamaConfigTest, WhatIsWrittenIsReadBack) {
  ModelConfig odd = Want();
  odd.head_width = 6;
  odd.qkv_bias = odd.attention_out_bias = odd.inner_bias = true;
  odd.tied_head = false;
  ModelConfig qwen = Want();
  qwen.family = ModelFamily::kQwen2;
  qwen.qkv_bias = true;
  qwen.rotary_scaling.reset();
  for (const ModelConfig& config : {Want(), odd, qwen}) {
    for (const Json& base : {Json::object(), Llama32()}) {
      const Json json = MakeLlamaConfig(base, config, 0.1);
      const auto back = ParseLlamaConfig(json);
      ASSERT_TRUE(back.ok()) << back.status();
      EXPECT_EQ(*back, config);
      EXPECT_EQ(json["torch_dtype"], "float32");
      EXPECT_EQ(json["attention_dropout"], 0.1);
      EXPECT_EQ(json.contains("use_cache"), !base.empty());
    }
  }
}

}  // namespace
}  // namespace lockstep
