// config.json of Hugging Face's GPT-2, and what we make of it.
#ifndef WORKER_CHECKPOINT_GPT2_CONFIG_H_
#define WORKER_CHECKPOINT_GPT2_CONFIG_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/model_config.h"
#include "nlohmann/json.hpp"

namespace lockstep {

// A field that is absent has the default that transformers gives it.  Dropout
// is the job's (numerics.dropout), not the model's, and is not read.
//
// Errors:
//   InvalidArgument: a field has the wrong type or range, or asks for something
//     that would not be trained exactly as it says (another model_type,
//     activation or scaling of attention, cross attention, pruned heads,
//     quantization): names the field, what it has and what is supported.
absl::StatusOr<ModelConfig> ParseGpt2Config(const nlohmann::json& json);

// `base` (an object; the config.json that training started from, or empty) with
// all fields set that describe `config` in float32 and `dropout`, 0 to 1.
// Without a base the begin and end tokens are null: GPT-2's own would be
// outside most vocabularies.
nlohmann::json MakeGpt2Config(const nlohmann::json& base,
                              const ModelConfig& config, double dropout);

}  // namespace lockstep

#endif  // WORKER_CHECKPOINT_GPT2_CONFIG_H_
