#include "worker/checkpoint/llama_config.h"

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "worker/checkpoint/config_fields.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

// A config's rotary fields, in either spelling.
struct Rotary {
  const Json* fields = nullptr;  // With rope_type, factor and so on; or null.
  const char* name = "";         // Of `fields`.
};

absl::Status ReadScaling(const Rotary& rotary, ModelConfig& config) {
  const Json& fields = *rotary.fields;
  if (fields.is_null()) return absl::OkStatus();
  if (!fields.is_object()) {
    return Unsupported(rotary.name, fields, "an object or null");
  }
  // "type" is the older name.
  const Json& newer = Field(fields, "rope_type");
  const Json& older = Field(fields, "type");
  const Json& type = newer.is_null() ? older : newer;
  const auto in = [&](const absl::Status& status) {
    return status.ok() ? status : Annotate(status, rotary.name);
  };
  if (!newer.is_null() && !older.is_null() && newer != older) {
    return in(Unsupported("type", older, "the same as rope_type"));
  }
  if (type.is_null() || type == "default") return absl::OkStatus();
  if (type != "llama3") {
    return in(Unsupported("rope_type", type, "\"default\" or \"llama3\""));
  }
  RotaryScaling scaling;
  // None has a default in transformers.
  for (const auto& [name, value] :
       {std::pair("factor", &scaling.factor),
        std::pair("low_freq_factor", &scaling.low_frequency_factor),
        std::pair("high_freq_factor", &scaling.high_frequency_factor)}) {
    if (Field(fields, name).is_null()) {
      return in(Unsupported(name, nullptr, "a number"));
    }
    RETURN_IF_ERROR(in(ReadNumber(fields, name, *value)));
  }
  const char* const original = "original_max_position_embeddings";
  if (Field(fields, original).is_null()) {
    return in(Unsupported(original, nullptr, "a whole number"));
  }
  RETURN_IF_ERROR(
      in(ReadCount(fields, original, nullptr, scaling.original_position_max)));
  config.rotary_scaling = scaling;
  return absl::OkStatus();
}

absl::Status ReadRotary(const Json& json, ModelConfig& config) {
  const Json& parameters = Field(json, "rope_parameters");
  const Json& scaling = Field(json, "rope_scaling");
  double share = 1;
  RETURN_IF_ERROR(ReadNumber(json, "partial_rotary_factor", share));
  if (share != 1) {
    return Unsupported("partial_rotary_factor", share, "1, or none");
  }
  RETURN_IF_ERROR(ReadNumber(json, "rope_theta", config.rotary_base));
  if (parameters.is_null()) {
    return ReadScaling({&scaling, "rope_scaling"}, config);
  }
  if (!parameters.is_object()) {
    return Unsupported("rope_parameters", parameters, "an object");
  }
  double base = config.rotary_base;
  RETURN_IF_ERROR(
      Annotate(ReadNumber(parameters, "rope_theta", base), "rope_parameters"));
  if (!Field(json, "rope_theta").is_null() && base != config.rotary_base) {
    return Unsupported("rope_theta", Field(json, "rope_theta"),
                       absl::StrCat("the same as in rope_parameters, ", base));
  }
  config.rotary_base = base;
  if (!scaling.is_null()) {
    return Unsupported("rope_scaling", scaling,
                       "null, since there are rope_parameters");
  }
  double partial = 1;
  RETURN_IF_ERROR(
      Annotate(ReadNumber(parameters, "partial_rotary_factor", partial),
               "rope_parameters"));
  if (partial != 1) {
    return Annotate(Unsupported("partial_rotary_factor", partial, "1, or none"),
                    "rope_parameters");
  }
  return ReadScaling({&parameters, "rope_parameters"}, config);
}

absl::Status RequireFullAttention(const Json& json) {
  RETURN_IF_ERROR(MustBe(json, "use_sliding_window", false));
  const Json& types = Field(json, "layer_types");
  if (types.is_null()) return absl::OkStatus();
  if (types.is_array()) {
    bool full = true;
    for (const Json& type : types) full = full && type == "full_attention";
    if (full) return absl::OkStatus();
  }
  return Unsupported("layer_types", types,
                     "\"full_attention\" for every layer, or none");
}

}  // namespace

absl::StatusOr<ModelConfig> ParseLlamaConfig(const Json& json) {
  if (!json.is_object()) {
    return absl::InvalidArgumentError("expected a JSON object");
  }
  ModelConfig config;
  const Json& type = Field(json, "model_type");
  if (type == "llama") {
    config.family = ModelFamily::kLlama;
    config.vocabulary = 32000;
    config.position_max = 2048;
    config.inner_width = 11008;
  } else if (type == "qwen2") {
    config.family = ModelFamily::kQwen2;
    config.vocabulary = 151936;
    config.position_max = 32768;
    config.inner_width = 22016;
    config.qkv_bias = true;
    RETURN_IF_ERROR(RequireFullAttention(json));
  } else {
    return Unsupported("model_type", type, "\"llama\" or \"qwen2\"");
  }
  if (const Json& activation = Field(json, "hidden_act");
      !activation.is_null() && activation != "silu") {
    return Unsupported("hidden_act", activation, "\"silu\"");
  }
  RETURN_IF_ERROR(MustBe(json, "is_encoder_decoder", false));
  RETURN_IF_ERROR(MustBe(json, "add_cross_attention", false));
  RETURN_IF_ERROR(MustBeEmpty(json, "pruned_heads"));
  RETURN_IF_ERROR(MustBeEmpty(json, "quantization_config"));

  config.width = 4096;
  config.layer_count = 32;
  config.head_count = 32;
  config.norm_epsilon = 1e-6;
  config.tied_head = false;
  RETURN_IF_ERROR(ReadCount(json, "vocab_size", nullptr, config.vocabulary));
  RETURN_IF_ERROR(
      ReadCount(json, "max_position_embeddings", nullptr, config.position_max));
  RETURN_IF_ERROR(ReadCount(json, "hidden_size", nullptr, config.width));
  RETURN_IF_ERROR(
      ReadCount(json, "intermediate_size", nullptr, config.inner_width));
  RETURN_IF_ERROR(
      ReadCount(json, "num_hidden_layers", nullptr, config.layer_count));
  RETURN_IF_ERROR(
      ReadCount(json, "num_attention_heads", nullptr, config.head_count));
  config.key_value_head_count = config.head_count;
  RETURN_IF_ERROR(ReadCount(json, "num_key_value_heads", nullptr,
                            config.key_value_head_count));
  RETURN_IF_ERROR(ReadNumber(json, "rms_norm_eps", config.norm_epsilon));
  RETURN_IF_ERROR(
      ReadNumber(json, "initializer_range", config.initializer_range));
  RETURN_IF_ERROR(ReadBool(json, "tie_word_embeddings", config.tied_head));
  RETURN_IF_ERROR(ReadRotary(json, config));
  if (config.family == ModelFamily::kLlama) {
    bool attention_bias = false;
    RETURN_IF_ERROR(ReadBool(json, "attention_bias", attention_bias));
    config.qkv_bias = config.attention_out_bias = attention_bias;
    RETURN_IF_ERROR(ReadBool(json, "mlp_bias", config.inner_bias));
    int64_t slices = 1;
    RETURN_IF_ERROR(ReadCount(json, "pretraining_tp", nullptr, slices));
    if (slices != 1) {
      return Unsupported("pretraining_tp", slices, "1, or none");
    }
  }

  // Its default needs a width and heads in range: those are checked first.
  config.head_width = 2;
  RETURN_IF_ERROR(ValidateModelConfig(config));
  config.head_width = config.width / config.head_count;
  if (Field(json, "head_dim").is_null() &&
      config.width % config.head_count != 0) {
    return Unsupported("head_dim", nullptr,
                       "a number, since hidden_size is no multiple of "
                       "num_attention_heads");
  }
  RETURN_IF_ERROR(ReadCount(json, "head_dim", nullptr, config.head_width));
  RETURN_IF_ERROR(ValidateModelConfig(config));
  return config;
}

Json MakeLlamaConfig(const Json& base, const ModelConfig& config,
                     double dropout) {
  Json json = base;
  if (base.empty()) {
    json["bos_token_id"] = nullptr;
    json["eos_token_id"] = nullptr;
  }
  // One spelling of each: the newer ones would contradict.
  for (const char* name : {"dtype", "rope_parameters"}) json.erase(name);
  const bool llama = config.family == ModelFamily::kLlama;
  json["architectures"] =
      Json::array({llama ? "LlamaForCausalLM" : "Qwen2ForCausalLM"});
  json["model_type"] = FamilyName(config.family);
  json["torch_dtype"] = "float32";
  json["hidden_act"] = "silu";
  json["vocab_size"] = config.vocabulary;
  json["max_position_embeddings"] = config.position_max;
  json["hidden_size"] = config.width;
  json["intermediate_size"] = config.inner_width;
  json["num_hidden_layers"] = config.layer_count;
  json["num_attention_heads"] = config.head_count;
  json["num_key_value_heads"] = config.key_value_head_count;
  json["head_dim"] = config.head_width;
  json["rms_norm_eps"] = config.norm_epsilon;
  json["initializer_range"] = config.initializer_range;
  json["tie_word_embeddings"] = config.tied_head;
  json["attention_dropout"] = dropout;
  json["rope_theta"] = config.rotary_base;
  json["rope_scaling"] = nullptr;
  if (const auto& scaling = config.rotary_scaling; scaling.has_value()) {
    json["rope_scaling"] = {
        {"rope_type", "llama3"},
        {"factor", scaling->factor},
        {"low_freq_factor", scaling->low_frequency_factor},
        {"high_freq_factor", scaling->high_frequency_factor},
        {"original_max_position_embeddings", scaling->original_position_max}};
  }
  if (llama) {
    json["attention_bias"] = config.qkv_bias;
    json["mlp_bias"] = config.inner_bias;
  } else {
    json["use_sliding_window"] = false;
  }
  return json;
}

}  // namespace lockstep
