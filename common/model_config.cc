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

}  // namespace

absl::Status ValidateModelConfig(const ModelConfig& c) {
  RETURN_IF_ERROR(InRange("vocab_size", c.vocabulary, 1'000'000));
  RETURN_IF_ERROR(InRange("n_positions", c.position_max, 1 << 20));
  RETURN_IF_ERROR(InRange("n_embd", c.width, 1 << 16));
  RETURN_IF_ERROR(InRange("n_layer", c.layer_count, 1000));
  RETURN_IF_ERROR(InRange("n_head", c.head_count, 1024));
  RETURN_IF_ERROR(InRange("n_inner", c.inner_width, 1 << 20));
  if (c.width % c.head_count != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("n_embd: expected a multiple of n_head=", c.head_count,
                     ", got ", c.width));
  }
  if (!(c.norm_epsilon >= 1e-12 && c.norm_epsilon <= 0.1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layer_norm_epsilon: expected 1e-12 to 0.1, got ", c.norm_epsilon));
  }
  if (!(c.initializer_range > 0 && c.initializer_range <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("initializer_range: expected above 0, to 1, got ",
                     c.initializer_range));
  }
  return absl::OkStatus();
}

}  // namespace lockstep
