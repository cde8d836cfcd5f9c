#include "cli/model_sizes.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/model_config.h"
#include "common/spec.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/hugging_face.h"

namespace lockstep::cli {
namespace {

absl::StatusOr<ModelConfig> ReadCheckpoint(const std::string& folder) {
  const auto checkpoint = Checkpoint::Open(folder);
  if (!checkpoint.ok()) return checkpoint.status();
  return checkpoint->info().model;
}

absl::StatusOr<ModelConfig> ReadHuggingFace(const std::string& folder) {
  const auto model = HuggingFaceModel::Open(folder);
  if (!model.ok()) return model.status();
  return model->config();
}

}  // namespace

absl::Status ReadModelSizes(v1::JobSpec* spec) {
  v1::ModelSpec& model = *spec->mutable_model();
  const bool from_checkpoint = model.has_checkpoint();
  const std::string& folder = from_checkpoint ? model.checkpoint().folder()
                                              : model.hugging_face_folder();
  if (folder.empty()) return absl::OkStatus();  // Nothing to read, or a fault.
  const auto config =
      from_checkpoint ? ReadCheckpoint(folder) : ReadHuggingFace(folder);
  if (!config.ok()) {
    return absl::UnavailableError(
        absl::StrCat(from_checkpoint ? "model.checkpoint.folder"
                                     : "model.hugging_face_folder",
                     ": cannot be read here: ", config.status().message()));
  }
  if (spec->data().sequence_length() > config->position_max) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.sequence_length: expected at most the model's longest, ",
        config->position_max, ", got ", spec->data().sequence_length()));
  }
  const v1::ModelSizes sizes = ToModelSizes(*config);
  if (model.has_sizes() &&
      model.sizes().SerializeAsString() != sizes.SerializeAsString()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model.sizes: expected what ", folder, " has, ",
        sizes.ShortDebugString(), ", got ", model.sizes().ShortDebugString(),
        "; leave it out, and it is read from there"));
  }
  *model.mutable_sizes() = sizes;
  return absl::OkStatus();
}

}  // namespace lockstep::cli
