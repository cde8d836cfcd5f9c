// Models as Hugging Face folders: config.json and model.safetensors, in and
// out of our flat space of float32.
#ifndef WORKER_CHECKPOINT_HUGGING_FACE_H_
#define WORKER_CHECKPOINT_HUGGING_FACE_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/layout.h"
#include "common/model_config.h"
#include "worker/checkpoint/safetensors_writer.h"
#include "worker/checkpoint/tensor_set.h"

namespace lockstep {

// The folder of a GPT-2, Llama or Qwen2 to read from.  Thread-safe.
class HuggingFaceModel {
 public:
  // Reads config.json and the headers of the weights, one file or sharded, and
  // checks that they are the tensors of MakeLayout(config): no more, no less,
  // of the right shapes, in F32, BF16 or F16.  Names may lack the prefix
  // "transformer." or "model.", as the hub's gpt2 does.  Buffers of old files
  // (attn.bias, attn.masked_bias, rotary_emb.inv_freq) are ignored.  A
  // lm_head.weight is allowed where the head is tied.
  //
  // Errors:
  //   NotFound, PermissionDenied, ...: a file cannot be opened.
  //   InvalidArgument: see ParseGpt2Config, ParseLlamaConfig, TensorSet::Open;
  //   or a tensor is
  //     missing, surplus, of another shape or type: names tensor, file, what
  //     was expected and found.
  static absl::StatusOr<HuggingFaceModel> Open(const std::string& folder);

  const ModelConfig& config() const { return config_; }
  const Layout& layout() const { return layout_; }

  // Fills flat[0, layout().element_count); padding becomes 0.
  //
  // Errors:
  //   InvalidArgument: a value is not finite; a tied lm_head.weight differs
  //     from the token embedding.  Names tensor, file and element.
  //   DataLoss, Unavailable, ...: a file cannot be read.
  absl::Status ReadWeights(float* flat) const;

  // The same of unit `unit` alone: values is (unit.range.element_count).
  absl::Status ReadUnit(int unit, float* values) const;

 private:
  HuggingFaceModel(ModelConfig config, TensorSet tensors);

  absl::Status MatchTensors(const std::string& folder);
  // embedding: the token embedding, which comes first in its unit.
  absl::Status CheckTiedHead(const float* embedding) const;

  ModelConfig config_;
  Layout layout_;
  TensorSet set_;
  std::vector<TensorSet::Entry> entries_;  // As layout_.tensors.
  TensorSet::Entry tied_head_;             // Null when there is none.
};

// A folder to write a trained model into: config.json, model.safetensors
// (float32), and the tokenizer's files.  One thread at a time.
class HuggingFaceWriter {
 public:
  struct Options {
    // Created by this, exclusively; its parent must be there.  To be renamed by
    // the caller when all is written (PublishFolder).
    std::string temporary_folder;
    ModelConfig config;
    double dropout = 0;  // As trained with, for config.json.
    // The folder training started from, or empty.  Other fields of its
    // config.json are kept, and these files copied where they are there:
    // tokenizer.json, tokenizer_config.json, special_tokens_map.json,
    // generation_config.json, vocab.json, merges.txt, chat_template.jinja.
    std::string source_folder;
  };

  // Creates everything but the weights, and allocates their file: before the
  // training, so that what would fail at its end fails now.  On an error
  // nothing is left behind.
  //
  // Errors:
  //   AlreadyExists: the folder is there.
  //   ResourceExhausted: the disk has not enough space.
  //   NotFound, PermissionDenied, ...: the folder cannot be created, or a file
  //     of the source not be read.
  static absl::StatusOr<std::unique_ptr<HuggingFaceWriter>> Create(
      const Options& options);

  // Removes the folder unless Finish succeeded.
  ~HuggingFaceWriter();

  // Writes the weights of a unit of MakeLayout(config), each once, in order.
  // values: (unit.range.element_count).  `on_progress` is called after every
  // tensor.
  //
  // Errors: as the disk says; names the file.
  absl::Status WriteUnit(
      int unit, const float* values,
      const std::function<void()>& on_progress = [] {});

  // After all units: syncs all files and the folder.  Once only.
  //
  // Errors: as the disk says; names the file.
  absl::Status Finish();

 private:
  HuggingFaceWriter(std::string folder, Layout layout)
      : folder_(std::move(folder)), layout_(std::move(layout)) {}

  absl::Status Prepare(const Options& options);

  const std::string folder_;
  const Layout layout_;
  std::unique_ptr<SafetensorsWriter> weights_;
  int next_unit_ = 0;
  bool finished_ = false;
};

}  // namespace lockstep

#endif  // WORKER_CHECKPOINT_HUGGING_FACE_H_
