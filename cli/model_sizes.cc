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
  if (!from_checkpoint && !model.has_hugging_face_folder()) {
    return absl::OkStatus();
  }
  const auto config = from_checkpoint
                          ? ReadCheckpoint(model.checkpoint().folder())
                          : ReadHuggingFace(model.hugging_face_folder());
  if (!config.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(from_checkpoint ? "model.checkpoint.folder"
                                     : "model.hugging_face_folder",
                     ": cannot be read here: ", config.status().message()));
  }
  *model.mutable_sizes() = ToModelSizes(*config);
  return absl::OkStatus();
}

}  // namespace lockstep::cli
