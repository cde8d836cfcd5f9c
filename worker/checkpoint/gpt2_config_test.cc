#include "worker/checkpoint/gpt2_config.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

TEST(Gpt2ConfigTest, ReadsGpt2AsTheHubHasIt) {
  const Json json = Json::parse(R"({
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1, "bos_token_id": 50256, "embd_pdrop": 0.1,
    "eos_token_id": 50256, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024,
    "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
    "resid_pdrop": 0.1, "summary_activation": null,
    "summary_first_dropout": 0.1, "summary_proj_to_labels": true,
    "summary_type": "cls_index", "summary_use_proj": true,
    "task_specific_params": {"text-generation": {"do_sample": true}},
    "vocab_size": 50257, "n_inner": null})");
  const absl::StatusOr<ModelConfig> config = ParseGpt2Config(json);
  ASSERT_TRUE(config.ok()) << config.status();
  ModelConfig want;
  want.vocabulary = 50257;
  want.position_max = 1024;
  want.width = 768;
  want.layer_count = 12;
  want.SetPlainHeads(12);
  want.inner_width = 3072;
  want.norm_epsilon = 1e-5;
  want.initializer_range = 0.02;
  want.tied_head = true;
  EXPECT_EQ(*config, want);

  // All of these are the defaults.
  const auto defaults =
      ParseGpt2Config(Json::parse(R"({"model_type":"gpt2"})"));
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_EQ(*defaults, want);
}

TEST(Gpt2ConfigTest, ReadsEveryField) {
  const auto config = ParseGpt2Config(Json::parse(R"({
    "model_type": "gpt2", "vocab_size": 300, "n_positions": 65, "n_embd": 24,
    "num_hidden_layers": 3, "n_head": 4, "num_attention_heads": 4,
    "n_inner": 50, "layer_norm_epsilon": 1e-6, "initializer_range": 0.5,
    "tie_word_embeddings": false, "activation_function": "gelu_pytorch_tanh",
    "pruned_heads": {}})"));
  ASSERT_TRUE(config.ok()) << config.status();
  ModelConfig want;
  want.vocabulary = 300;
  want.position_max = 65;
  want.width = 24;
  want.layer_count = 3;
  want.SetPlainHeads(4);
  want.inner_width = 50;
  want.norm_epsilon = 1e-6;
  want.initializer_range = 0.5;
  want.tied_head = false;
  EXPECT_EQ(*config, want);
}

TEST(Gpt2ConfigTest, TheInnerWidthIsFourTimesTheWidthUnlessGiven) {
  const auto config = ParseGpt2Config(
      Json::parse(R"({"model_type": "gpt2", "n_embd": 24, "n_inner": null})"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->inner_width, 96);
}

TEST(Gpt2ConfigTest, RefusesWhatItWouldNotTrainExactlyByTheFieldsName) {
  struct Case {
    const char* field;
    const char* value;
  };
  const Case cases[] = {
      {"model_type", "\"llama\""},
      {"activation_function", "\"relu\""},
      {"activation_function", "\"gelu\""},
      {"scale_attn_weights", "false"},
      {"scale_attn_by_inverse_layer_idx", "true"},
      {"reorder_and_upcast_attn", "true"},
      {"add_cross_attention", "true"},
      {"is_encoder_decoder", "true"},
      {"pruned_heads", "{\"0\": [1]}"},
      {"quantization_config", "{\"bits\": 4}"},
      {"vocab_size", "0"},
      {"vocab_size", "\"256\""},
      {"vocab_size", "256.5"},
      {"vocab_size", "18446744073709551615"},
      {"n_embd", "-64"},
      {"n_embd", "65"},
      {"n_embd", "9223372036854775807"},
      {"n_inner", "0"},
      {"hidden_size", "32"},
      {"layer_norm_epsilon", "\"small\""},
      {"layer_norm_epsilon", "0"},
      {"initializer_range", "-1"},
      {"tie_word_embeddings", "1"},
  };
  for (const Case& c : cases) {
    Json json = {{"model_type", "gpt2"}, {"n_embd", 64}, {"n_head", 4}};
    json[c.field] = Json::parse(c.value);
    const absl::Status status = ParseGpt2Config(json).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << json;
    EXPECT_THAT(std::string(status.message()),
                StartsWith(std::string(c.field) + ": expected "));
  }
  EXPECT_THAT(ParseGpt2Config(Json::parse("{}")).status().message(),
              HasSubstr("model_type: expected \"gpt2\", got null"));
  EXPECT_FALSE(ParseGpt2Config(Json::parse("[]")).ok());
}

TEST(Gpt2ConfigTest, WhatIsMadeReadsBackTheSame) {
  ModelConfig config;
  config.vocabulary = 256;
  config.position_max = 65;
  config.width = 24;
  config.layer_count = 3;
  config.SetPlainHeads(4);
  config.inner_width = 50;
  config.norm_epsilon = 1.1e-6;
  config.initializer_range = 0.123456789;
  config.tied_head = false;
  const Json made = MakeGpt2Config(Json::object(), config, 0.25);
  EXPECT_EQ(ParseGpt2Config(Json::parse(made.dump())).value(), config);
  EXPECT_EQ(made["resid_pdrop"], 0.25);
  EXPECT_TRUE(made["eos_token_id"].is_null());

  // What the base says of other things stays; aliases do not contradict.
  const Json base = {{"model_type", "gpt2"},  {"eos_token_id", 5},
                     {"hidden_size", 768},    {"n_embd", 768},
                     {"torch_dtype", "half"}, {"dtype", "half"},
                     {"my_note", "kept"}};
  const Json remade = MakeGpt2Config(base, config, 0);
  EXPECT_EQ(ParseGpt2Config(remade).value(), config);
  EXPECT_EQ(remade["eos_token_id"], 5);
  EXPECT_EQ(remade["my_note"], "kept");
  EXPECT_EQ(remade["torch_dtype"], "float32");
  EXPECT_FALSE(remade.contains("dtype"));
}

}  // namespace
}  // namespace lockstep
