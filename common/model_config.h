// What a decoder is made of: one description for all families.
#ifndef COMMON_MODEL_CONFIG_H_
#define COMMON_MODEL_CONFIG_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace lockstep {

// The folder layout and tensor names a model is read and written in.
enum class ModelFamily { kGpt2 };

// A decoder-only transformer, as GPT-2 has it: learned positions, layer norm
// before each part, tanh GELU, biases everywhere but in the head.
struct ModelConfig {
  ModelFamily family = ModelFamily::kGpt2;
  int64_t vocabulary = 0;    // Rows of the token embedding; positive.
  int64_t position_max = 0;  // Rows of the position embedding; positive.
  int64_t width = 0;         // Positive multiple of head_count.
  int64_t layer_count = 0;   // Positive.
  int64_t head_count = 0;    // Positive.
  int64_t inner_width = 0;   // Of the feed-forward part; positive.
  double norm_epsilon = 1e-5;
  double initializer_range = 0.02;
  bool tied_head = true;  // The head's weight is the token embedding's.

  int64_t head_width() const { return width / head_count; }
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

// Errors:
//   InvalidArgument: a field is out of its range; the message names it in
//     Hugging Face's words for the family.
absl::Status ValidateModelConfig(const ModelConfig& config);

}  // namespace lockstep

#endif  // COMMON_MODEL_CONFIG_H_
