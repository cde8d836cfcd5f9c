#include "worker/checkpoint/gpt2_config.h"

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "worker/checkpoint/config_fields.h"

namespace lockstep {

using Json = nlohmann::json;

absl::StatusOr<ModelConfig> ParseGpt2Config(const Json& json) {
  if (!json.is_object()) {
    return absl::InvalidArgumentError("expected a JSON object");
  }
  if (const Json& type = Field(json, "model_type"); type != "gpt2") {
    return Unsupported("model_type", type, "\"gpt2\"");
  }
  if (const Json& activation = Field(json, "activation_function");
      !activation.is_null() && activation != "gelu_new" &&
      activation != "gelu_pytorch_tanh") {
    return Unsupported("activation_function", activation,
                       "\"gelu_new\" or \"gelu_pytorch_tanh\"");
  }
  RETURN_IF_ERROR(MustBe(json, "scale_attn_weights", true));
  RETURN_IF_ERROR(MustBe(json, "scale_attn_by_inverse_layer_idx", false));
  RETURN_IF_ERROR(MustBe(json, "reorder_and_upcast_attn", false));
  RETURN_IF_ERROR(MustBe(json, "add_cross_attention", false));
  RETURN_IF_ERROR(MustBe(json, "is_encoder_decoder", false));
  RETURN_IF_ERROR(MustBeEmpty(json, "pruned_heads"));
  RETURN_IF_ERROR(MustBeEmpty(json, "quantization_config"));

  ModelConfig config;
  config.family = ModelFamily::kGpt2;
  config.vocabulary = 50257;
  config.position_max = 1024;
  config.width = 768;
  config.layer_count = 12;
  int64_t head_count = 12;
  RETURN_IF_ERROR(ReadCount(json, "vocab_size", nullptr, config.vocabulary));
  RETURN_IF_ERROR(ReadCount(json, "n_positions", "max_position_embeddings",
                            config.position_max));
  RETURN_IF_ERROR(ReadCount(json, "n_embd", "hidden_size", config.width));
  RETURN_IF_ERROR(
      ReadCount(json, "n_layer", "num_hidden_layers", config.layer_count));
  RETURN_IF_ERROR(ReadCount(json, "n_head", "num_attention_heads", head_count));
  config.SetPlainHeads(head_count);
  RETURN_IF_ERROR(ReadNumber(json, "layer_norm_epsilon", config.norm_epsilon));
  RETURN_IF_ERROR(
      ReadNumber(json, "initializer_range", config.initializer_range));
  RETURN_IF_ERROR(ReadBool(json, "tie_word_embeddings", config.tied_head));

  // Its default needs a width in range: that is checked with the rest.
  config.inner_width = 1;
  RETURN_IF_ERROR(ValidateModelConfig(config));
  config.inner_width = 4 * config.width;
  RETURN_IF_ERROR(ReadCount(json, "n_inner", nullptr, config.inner_width));
  RETURN_IF_ERROR(ValidateModelConfig(config));
  return config;
}

Json MakeGpt2Config(const Json& base, const ModelConfig& config,
                    double dropout) {
  Json json = base;
  if (base.empty()) {
    json["bos_token_id"] = nullptr;
    json["eos_token_id"] = nullptr;
  }
  // One name for each: aliases and the newer name of the type would contradict.
  for (const char* name :
       {"max_position_embeddings", "hidden_size", "num_hidden_layers",
        "num_attention_heads", "n_ctx", "dtype"}) {
    json.erase(name);
  }
  json["architectures"] = Json::array({"GPT2LMHeadModel"});
  json["model_type"] = "gpt2";
  json["torch_dtype"] = "float32";
  json["activation_function"] = "gelu_new";
  json["vocab_size"] = config.vocabulary;
  json["n_positions"] = config.position_max;
  json["n_embd"] = config.width;
  json["n_layer"] = config.layer_count;
  json["n_head"] = config.head_count;
  json["n_inner"] = config.inner_width;
  json["layer_norm_epsilon"] = config.norm_epsilon;
  json["initializer_range"] = config.initializer_range;
  json["tie_word_embeddings"] = config.tied_head;
  json["attn_pdrop"] = dropout;
  json["embd_pdrop"] = dropout;
  json["resid_pdrop"] = dropout;
  json["scale_attn_weights"] = true;
  json["scale_attn_by_inverse_layer_idx"] = false;
  json["reorder_and_upcast_attn"] = false;
  return json;
}

}  // namespace lockstep
