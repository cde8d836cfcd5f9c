#include "worker/checkpoint/hugging_face.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/check.h"
#include "common/status.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/config_fields.h"
#include "worker/checkpoint/dtype.h"
#include "worker/checkpoint/durable_file.h"
#include "worker/checkpoint/gpt2_config.h"
#include "worker/checkpoint/llama_config.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/checkpoint/strict_json.h"
#include "worker/data/random_access_file.h"

namespace lockstep {
namespace {

constexpr char kHead[] = "lm_head.weight";
constexpr char kConfigFile[] = "config.json";
constexpr char kWeightsFile[] = "model.safetensors";

// What belongs to a model but is not ours to make.
constexpr const char* kCopiedFiles[] = {
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
};
constexpr int64_t kCopiedBytesMax = int64_t{1} << 30;

// Elements converted at once.
constexpr int64_t kChunk = 256 << 10;

std::string At(const TensorSet::Entry& entry) {
  return absl::StrCat(entry.file->path(), ": tensor \"", entry.info->name,
                      "\"");
}

// Elements [first, first + count) of `entry`, as float32.
absl::Status ReadFloats(const TensorSet::Entry& entry, int64_t first,
                        int64_t count, float* out) {
  const TensorInfo& info = *entry.info;
  if (info.dtype == Dtype::kF32) {
    return entry.file->Read(info, 4 * first, 4 * count, out);
  }
  std::vector<uint16_t> raw(static_cast<size_t>(count));
  RETURN_IF_ERROR(entry.file->Read(info, 2 * first, 2 * count, raw.data()));
  if (info.dtype == Dtype::kF16) {
    std::transform(raw.begin(), raw.end(), out, FloatFromHalf);
  } else {
    LS_CHECK(info.dtype == Dtype::kBf16);
    std::transform(raw.begin(), raw.end(), out, FloatFromBfloat16);
  }
  return absl::OkStatus();
}

absl::Status CheckForm(const TensorSet::Entry& entry,
                       const std::vector<int64_t>& shape) {
  const TensorInfo& info = *entry.info;
  if (info.shape != shape) {
    return absl::InvalidArgumentError(
        absl::StrCat(At(entry), ": expected shape ", ShapeText(shape),
                     ", as config.json says (fields that it lacks have "
                     "transformers' defaults), found ",
                     ShapeText(info.shape)));
  }
  if (info.dtype != Dtype::kF32 && info.dtype != Dtype::kF16 &&
      info.dtype != Dtype::kBf16) {
    return absl::InvalidArgumentError(
        absl::StrCat(At(entry), ": expected F32, BF16 or F16, found ",
                     DtypeName(info.dtype)));
  }
  return absl::OkStatus();
}

absl::string_view PrefixOf(ModelFamily family) {
  return family == ModelFamily::kGpt2 ? "transformer." : "model.";
}

// A mask or a table that old versions saved with every block.
bool IsBuffer(ModelFamily family, absl::string_view name) {
  if (!absl::ConsumePrefix(&name, PrefixOf(family))) return false;
  return family == ModelFamily::kGpt2
             ? absl::StartsWith(name, "h.") &&
                   (absl::EndsWith(name, ".attn.bias") ||
                    absl::EndsWith(name, ".attn.masked_bias"))
             : absl::StartsWith(name, "layers.") &&
                   absl::EndsWith(name, ".self_attn.rotary_emb.inv_freq");
}

absl::StatusOr<ModelConfig> ParseConfig(const nlohmann::json& json) {
  if (!json.is_object()) {
    return absl::InvalidArgumentError("expected a JSON object");
  }
  const nlohmann::json& type = Field(json, "model_type");
  if (type == "gpt2") return ParseGpt2Config(json);
  if (type == "llama" || type == "qwen2") return ParseLlamaConfig(json);
  return Unsupported("model_type", type, "\"gpt2\", \"llama\" or \"qwen2\"");
}

absl::Status CopyFile(const std::string& from, const std::string& to) {
  ASSIGN_OR_RETURN(const RandomAccessFile file, RandomAccessFile::Open(from));
  if (file.size() > kCopiedBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(from, ": has ", file.size(),
                                                   " bytes; expected at most ",
                                                   kCopiedBytesMax));
  }
  std::string content(static_cast<size_t>(file.size()), '\0');
  RETURN_IF_ERROR(file.ReadAt(0, file.size(), content.data()));
  return WriteNewFile(to, content);
}

}  // namespace

HuggingFaceModel::HuggingFaceModel(ModelConfig config, TensorSet tensors)
    : config_(config), layout_(MakeLayout(config)), set_(std::move(tensors)) {}

absl::StatusOr<HuggingFaceModel> HuggingFaceModel::Open(
    const std::string& folder) {
  const std::string config_path = absl::StrCat(folder, "/", kConfigFile);
  ASSIGN_OR_RETURN(const nlohmann::json json, ReadStrictJsonFile(config_path));
  const absl::StatusOr<ModelConfig> config = ParseConfig(json);
  if (!config.ok()) return Annotate(config.status(), config_path);
  ASSIGN_OR_RETURN(TensorSet set, TensorSet::Open(folder));
  HuggingFaceModel model(*config, std::move(set));
  RETURN_IF_ERROR(model.MatchTensors(folder));
  return model;
}

absl::Status HuggingFaceModel::MatchTensors(const std::string& folder) {
  std::map<std::string, TensorSet::Entry> found;  // By our name.
  for (const auto& [name, entry] : set_.tensors()) {
    const absl::string_view prefix = PrefixOf(config_.family);
    const std::string ours = name == kHead || absl::StartsWith(name, prefix)
                                 ? name
                                 : absl::StrCat(prefix, name);
    if (IsBuffer(config_.family, ours)) continue;
    const auto [other, added] = found.emplace(ours, entry);
    if (!added) {
      return absl::InvalidArgumentError(
          absl::StrCat(At(entry), ": there is \"", other->second.info->name,
                       "\" too; expected one of them"));
    }
  }
  for (const Tensor& tensor : layout_.tensors) {
    const auto entry = found.find(tensor.name);
    if (entry == found.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          folder, ": tensor \"", tensor.name, "\" is missing; ", kConfigFile,
          " asks for it, with shape ", ShapeText(tensor.shape)));
    }
    RETURN_IF_ERROR(CheckForm(entry->second, tensor.shape));
    entries_.push_back(entry->second);
    found.erase(entry);
  }
  if (const auto head = found.find(kHead); head != found.end()) {
    // The layout has none, so it is tied.
    RETURN_IF_ERROR(
        CheckForm(head->second, {config_.vocabulary, config_.width}));
    tied_head_ = head->second;
    found.erase(head);
  }
  if (!found.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        At(found.begin()->second), ": is none of the model that ", kConfigFile,
        " describes (", found.size(), " such tensor(s))"));
  }
  return absl::OkStatus();
}

absl::Status HuggingFaceModel::ReadWeights(float* flat) const {
  for (size_t u = 0; u < layout_.units.size(); ++u) {
    RETURN_IF_ERROR(
        ReadUnit(static_cast<int>(u), flat + layout_.units[u].range.offset));
  }
  return absl::OkStatus();
}

absl::Status HuggingFaceModel::ReadUnit(int unit, float* values) const {
  const Unit& u = layout_.units[unit];
  int64_t end = 0;
  for (int i = u.first_tensor; i < u.end_tensor; ++i) {
    const Tensor& tensor = layout_.tensors[i];
    const int64_t begin = tensor.offset - u.range.offset;
    std::fill(values + end, values + begin, 0.0f);
    end = begin + tensor.element_count;
    for (int64_t done = 0; done < tensor.element_count; done += kChunk) {
      const int64_t count = std::min(kChunk, tensor.element_count - done);
      float* const out = values + begin + done;
      RETURN_IF_ERROR(ReadFloats(entries_[i], done, count, out));
      const float* const bad = std::find_if_not(
          out, out + count, [](float value) { return std::isfinite(value); });
      if (bad != out + count) {
        return absl::InvalidArgumentError(
            absl::StrCat(At(entries_[i]), ": element ", done + (bad - out),
                         ": expected a finite number, found ", *bad));
      }
    }
  }
  std::fill(values + end, values + u.range.element_count, 0.0f);
  const bool has_embedding =
      layout_.tensors[u.first_tensor].role == TensorRole::kTokenEmbedding;
  return has_embedding && tied_head_.info != nullptr ? CheckTiedHead(values)
                                                     : absl::OkStatus();
}

absl::Status HuggingFaceModel::CheckTiedHead(const float* embedding) const {
  const int64_t n =
      layout_.tensors[layout_.Find(TensorRole::kTokenEmbedding)].element_count;
  std::vector<float> head(kChunk);
  for (int64_t done = 0; done < n; done += kChunk) {
    const int64_t count = std::min(kChunk, n - done);
    RETURN_IF_ERROR(ReadFloats(tied_head_, done, count, head.data()));
    const float* const tied = embedding + done;
    const auto differs =
        std::mismatch(head.begin(), head.begin() + count, tied).first;
    if (differs != head.begin() + count) {
      return absl::InvalidArgumentError(absl::StrCat(
          At(tied_head_), ": element ", done + (differs - head.begin()),
          ": expected the token embedding's ", tied[differs - head.begin()],
          ", found ", *differs,
          "; if the head is its own, set tie_word_embeddings to false in ",
          kConfigFile));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<HuggingFaceWriter>> HuggingFaceWriter::Create(
    const Options& options) {
  RETURN_IF_ERROR(CreateNewFolder(options.temporary_folder));
  // From here on its destructor removes the folder.
  auto writer = std::unique_ptr<HuggingFaceWriter>(new HuggingFaceWriter(
      options.temporary_folder, MakeLayout(options.config)));
  RETURN_IF_ERROR(writer->Prepare(options));
  return writer;
}

HuggingFaceWriter::~HuggingFaceWriter() {
  if (finished_) return;
  std::error_code unused;  // It may be gone with its disk.
  std::filesystem::remove_all(folder_, unused);
}

absl::Status HuggingFaceWriter::Prepare(const Options& options) {
  nlohmann::json base = nlohmann::json::object();
  if (!options.source_folder.empty()) {
    const std::string path =
        absl::StrCat(options.source_folder, "/", kConfigFile);
    ASSIGN_OR_RETURN(base, ReadStrictJsonFile(path));
    if (!base.is_object()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": expected a JSON object"));
    }
    for (const char* name : kCopiedFiles) {
      const std::string from = absl::StrCat(options.source_folder, "/", name);
      const absl::Status copied =
          CopyFile(from, absl::StrCat(folder_, "/", name));
      if (!copied.ok() && !absl::IsNotFound(copied)) return copied;
    }
  }
  const nlohmann::json config =
      options.config.is_gpt2()
          ? MakeGpt2Config(base, options.config, options.dropout)
          : MakeLlamaConfig(base, options.config, options.dropout);
  RETURN_IF_ERROR(WriteNewFile(absl::StrCat(folder_, "/", kConfigFile),
                               config.dump(2) + "\n"));

  std::vector<TensorSpec> specs;
  for (const Tensor& tensor : layout_.tensors) {
    specs.push_back({tensor.name, Dtype::kF32, tensor.shape});
  }
  ASSIGN_OR_RETURN(
      SafetensorsWriter weights,
      SafetensorsWriter::Create(absl::StrCat(folder_, "/", kWeightsFile),
                                std::move(specs)));
  weights_ = std::make_unique<SafetensorsWriter>(std::move(weights));
  return absl::OkStatus();
}

absl::Status HuggingFaceWriter::WriteUnit(
    int unit, const float* values, const std::function<void()>& on_progress) {
  LS_CHECK(unit == next_unit_);
  ++next_unit_;
  const Unit& u = layout_.units[unit];
  for (int i = u.first_tensor; i < u.end_tensor; ++i) {
    const Tensor& tensor = layout_.tensors[i];
    RETURN_IF_ERROR(weights_->Append(
        tensor.name, values + tensor.offset - u.range.offset,
        tensor.element_count * static_cast<int64_t>(sizeof(float))));
    on_progress();
  }
  return absl::OkStatus();
}

absl::Status HuggingFaceWriter::Finish() {
  LS_CHECK(next_unit_ == static_cast<int>(layout_.units.size()) && !finished_);
  RETURN_IF_ERROR(weights_->Finish());
  RETURN_IF_ERROR(SyncFolder(folder_));
  finished_ = true;
  return absl::OkStatus();
}

}  // namespace lockstep
