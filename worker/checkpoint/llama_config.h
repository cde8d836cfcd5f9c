// config.json of Hugging Face's Llama and Qwen2, and what we make of it.
#ifndef WORKER_CHECKPOINT_LLAMA_CONFIG_H_
#define WORKER_CHECKPOINT_LLAMA_CONFIG_H_

#include "absl/status/statusor.h"
#include "common/model_config.h"
#include "nlohmann/json.hpp"

namespace lockstep {

// A field that is absent has the default that transformers gives it.  Rotary
// positions are read in both spellings: rope_theta and rope_scaling, or
// rope_parameters.  Dropout is the job's (numerics.dropout), not the model's,
// and is not read.
//
// Errors:
//   InvalidArgument: a field has the wrong type or range, contradicts another,
//     or asks for something that would not be trained exactly as it says
//     (another activation, scaling of rotary positions, sliding windows,
//     quantization): names the field, what it has and what is supported.
absl::StatusOr<ModelConfig> ParseLlamaConfig(const nlohmann::json& json);

// `base` (an object; the config.json that training started from, or empty) with
// all fields set that describe `config` in float32 and `dropout`, 0 to 1.
// Without a base the begin and end tokens are null.
nlohmann::json MakeLlamaConfig(const nlohmann::json& base,
                               const ModelConfig& config, double dropout);

}  // namespace lockstep

#endif  // WORKER_CHECKPOINT_LLAMA_CONFIG_H_
