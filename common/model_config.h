// What a decoder is made of: one description for all families.
#ifndef COMMON_MODEL_CONFIG_H_
#define COMMON_MODEL_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace lockstep {

// The folder layout, tensor names and config fields a model is read and written
// in, and how it is built:
//
//   - GPT-2: learned positions, layer norm, GELU (tanh), biases everywhere but
//     in the head;
//   - Llama: rotary positions, norm by the root mean square, SwiGLU, biases as
//     its config says;
//   - Qwen2: as Llama, with biases of query, key and value.
enum class ModelFamily { kGpt2, kLlama, kQwen2 };
inline constexpr ModelFamily kModelFamilies[] = {
    ModelFamily::kGpt2, ModelFamily::kLlama, ModelFamily::kQwen2};

// Hugging Face's model_type.
absl::string_view FamilyName(ModelFamily family);

// How Llama 3 stretches rotary positions: slow turns, of a wave length above
// original_position_max / low_frequency_factor, are slowed by `factor`, fast
// ones, below original_position_max / high_frequency_factor, are left alone,
// and those between are blended.
struct RotaryScaling {
  double factor = 8;
  double low_frequency_factor = 1;
  double high_frequency_factor = 4;
  int64_t original_position_max = 8192;
  friend bool operator==(const RotaryScaling&, const RotaryScaling&) = default;
};

// A decoder-only transformer with a norm before each part of a block.
struct ModelConfig {
  ModelFamily family = ModelFamily::kGpt2;
  int64_t vocabulary = 0;  // Rows of the token embedding; positive.
  // Longest sequence; with learned positions, rows of their table.  Positive.
  int64_t position_max = 0;
  int64_t width = 0;        // Positive.
  int64_t layer_count = 0;  // Positive.
  int64_t head_count = 0;   // Of queries; positive.
  // Of keys and of values: a divisor of head_count, and with GPT-2 the same.
  int64_t key_value_head_count = 0;
  // Positive; even with rotary positions; with GPT-2 width / head_count.
  int64_t head_width = 0;
  int64_t inner_width = 0;  // Of the feed-forward part; positive.
  double norm_epsilon = 1e-5;
  double initializer_range = 0.02;
  bool tied_head = true;  // The head's weight is the token embedding's.

  // Of Llama and Qwen2.
  double rotary_base = 10000;
  std::optional<RotaryScaling> rotary_scaling;
  bool qkv_bias = false;            // With Qwen2 always.
  bool attention_out_bias = false;  // With Qwen2 never.
  bool inner_bias = false;          // Of the feed-forward's three products.

  // Every query head with its own keys, all heads together as wide as the
  // model.  After `width` is set.
  void SetPlainHeads(int64_t count) {
    head_count = key_value_head_count = count;
    head_width = count > 0 ? width / count : 0;
  }

  bool is_gpt2() const { return family == ModelFamily::kGpt2; }
  int64_t query_width() const { return head_count * head_width; }
  int64_t key_value_width() const { return key_value_head_count * head_width; }
  int64_t qkv_width() const { return query_width() + 2 * key_value_width(); }
  // Columns of the products before the activation: SwiGLU has two.
  int64_t inner_columns() const {
    return is_gpt2() ? inner_width : 2 * inner_width;
  }
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

// Errors:
//   InvalidArgument: a field is out of its range; the message names it in
//     Hugging Face's words for the family.
absl::Status ValidateModelConfig(const ModelConfig& config);

}  // namespace lockstep

#endif  // COMMON_MODEL_CONFIG_H_
