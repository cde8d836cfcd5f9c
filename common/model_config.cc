#include "common/model_config.h"

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace lockstep {
namespace {

absl::Status InRange(const char* name, int64_t value, int64_t max) {
  if (value >= 1 && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": expected 1 to ", max, ", got ", value));
}

absl::Status Within(const char* name, bool sound, absl::string_view expected,
                    double value) {
  if (sound) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": expected ", expected, ", got ", value));
}

absl::Status DivisibleBy(const char* name, int64_t value, const char* by,
                         int64_t divisor) {
  if (value % divisor == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      name, ": expected a multiple of ", by, "=", divisor, ", got ", value));
}

absl::Status ValidateGpt2(const ModelConfig& c) {
  RETURN_IF_ERROR(InRange("vocab_size", c.vocabulary, 1'000'000));
  RETURN_IF_ERROR(InRange("n_positions", c.position_max, 1 << 20));
  RETURN_IF_ERROR(InRange("n_embd", c.width, 1 << 16));
  RETURN_IF_ERROR(InRange("n_layer", c.layer_count, 1000));
  RETURN_IF_ERROR(InRange("n_head", c.head_count, 1024));
  RETURN_IF_ERROR(InRange("n_inner", c.inner_width, 1 << 20));
  RETURN_IF_ERROR(DivisibleBy("n_embd", c.width, "n_head", c.head_count));
  if (c.key_value_head_count != c.head_count ||
      c.head_width != c.width / c.head_count) {
    return absl::InternalError("a GPT-2 has as many keys as queries");
  }
  return Within("layer_norm_epsilon",
                c.norm_epsilon >= 1e-12 && c.norm_epsilon <= 0.1,
                "1e-12 to 0.1", c.norm_epsilon);
}

absl::Status ValidateScaling(const RotaryScaling& s) {
  RETURN_IF_ERROR(Within("rope_scaling.factor",
                         s.factor >= 1 && s.factor <= 1e6, "1 to 1e6",
                         s.factor));
  RETURN_IF_ERROR(Within("rope_scaling.low_freq_factor",
                         s.low_frequency_factor > 0 &&
                             s.low_frequency_factor < s.high_frequency_factor,
                         "above 0, below high_freq_factor",
                         s.low_frequency_factor));
  RETURN_IF_ERROR(Within("rope_scaling.high_freq_factor",
                         s.high_frequency_factor <= 1e6, "at most 1e6",
                         s.high_frequency_factor));
  return InRange("rope_scaling.original_max_position_embeddings",
                 s.original_position_max, 1 << 30);
}

absl::Status ValidateLlama(const ModelConfig& c) {
  RETURN_IF_ERROR(InRange("vocab_size", c.vocabulary, 1'000'000));
  RETURN_IF_ERROR(InRange("max_position_embeddings", c.position_max, 1 << 30));
  RETURN_IF_ERROR(InRange("hidden_size", c.width, 1 << 16));
  RETURN_IF_ERROR(InRange("num_hidden_layers", c.layer_count, 1000));
  RETURN_IF_ERROR(InRange("num_attention_heads", c.head_count, 1024));
  RETURN_IF_ERROR(InRange("num_key_value_heads", c.key_value_head_count, 1024));
  RETURN_IF_ERROR(InRange("head_dim", c.head_width, 1 << 12));
  RETURN_IF_ERROR(InRange("intermediate_size", c.inner_width, 1 << 20));
  RETURN_IF_ERROR(DivisibleBy("num_attention_heads", c.head_count,
                              "num_key_value_heads", c.key_value_head_count));
  RETURN_IF_ERROR(Within("head_dim", c.head_width % 2 == 0, "an even number",
                         static_cast<double>(c.head_width)));
  RETURN_IF_ERROR(Within("rms_norm_eps",
                         c.norm_epsilon >= 1e-12 && c.norm_epsilon <= 0.1,
                         "1e-12 to 0.1", c.norm_epsilon));
  RETURN_IF_ERROR(Within("rope_theta",
                         c.rotary_base >= 1 && c.rotary_base <= 1e12,
                         "1 to 1e12", c.rotary_base));
  if (c.rotary_scaling.has_value()) {
    RETURN_IF_ERROR(ValidateScaling(*c.rotary_scaling));
  }
  return absl::OkStatus();
}

}  // namespace

absl::string_view FamilyName(ModelFamily family) {
  switch (family) {
    case ModelFamily::kGpt2:
      return "gpt2";
    case ModelFamily::kLlama:
      return "llama";
    case ModelFamily::kQwen2:
      return "qwen2";
  }
  return "";
}

absl::Status ValidateModelConfig(const ModelConfig& c) {
  RETURN_IF_ERROR(c.is_gpt2() ? ValidateGpt2(c) : ValidateLlama(c));
  return Within("initializer_range",
                c.initializer_range > 0 && c.initializer_range <= 1,
                "above 0, to 1", c.initializer_range);
}

}  // namespace lockstep
