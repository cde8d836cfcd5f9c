#include "worker/checkpoint/tensor_set.h"

#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "worker/checkpoint/strict_json.h"

namespace lockstep {
namespace {

constexpr char kSingle[] = "model.safetensors";
constexpr char kIndex[] = "model.safetensors.index.json";

bool Exists(const std::string& path) {
  std::error_code unused;
  return std::filesystem::exists(path, unused);
}

std::string Quoted(const std::string& name) {
  return absl::StrCat("\"", absl::Utf8SafeCEscape(name), "\"");
}

// A file of the folder itself, so that an index cannot reach others.
bool IsPlainFileName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

}  // namespace

absl::StatusOr<TensorSet> TensorSet::Open(const std::string& path) {
  TensorSet set;
  std::error_code unused;
  if (!std::filesystem::is_directory(path, unused)) {
    RETURN_IF_ERROR(set.AddFile(path));
    return set;
  }
  const std::string single = absl::StrCat(path, "/", kSingle);
  const std::string index = absl::StrCat(path, "/", kIndex);
  if (Exists(single) && Exists(index)) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": has both ", kSingle, " and ", kIndex,
        "; expected one of them: which one is meant?  Move the other away"));
  }
  if (Exists(index)) {
    RETURN_IF_ERROR(set.OpenShards(path, index));
    return set;
  }
  if (!Exists(single)) {
    return absl::NotFoundError(absl::StrCat(path, ": expected ", kSingle,
                                            " or ", kIndex,
                                            "; found neither; a model in "
                                            "another format is to be saved "
                                            "again as safetensors"));
  }
  RETURN_IF_ERROR(set.AddFile(single));
  return set;
}

absl::Status TensorSet::OpenShards(const std::string& folder,
                                   const std::string& index) {
  ASSIGN_OR_RETURN(const nlohmann::json json, ReadStrictJsonFile(index));
  if (!json.is_object() || !json.contains("weight_map") ||
      !json["weight_map"].is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(index, ": expected an object with a weight_map object"));
  }
  std::map<std::string, std::string> file_of_tensor;
  std::set<std::string> files;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    if (!file.is_string() || !IsPlainFileName(file.get<std::string>())) {
      return absl::InvalidArgumentError(absl::StrCat(
          index, ": weight_map: ", Quoted(tensor),
          ": expected the name of a file in the folder, got ", file.dump()));
    }
    file_of_tensor[tensor] = absl::StrCat(folder, "/", file.get<std::string>());
    files.insert(file_of_tensor[tensor]);
  }
  for (const std::string& file : files) RETURN_IF_ERROR(AddFile(file));

  for (const auto& [tensor, file] : file_of_tensor) {
    const auto found = tensors_.find(tensor);
    if (found == tensors_.end() || found->second.file->path() != file) {
      return absl::InvalidArgumentError(
          absl::StrCat(index, ": weight_map: ", Quoted(tensor), ": ", file,
                       " has no such tensor"));
    }
  }
  for (const auto& [tensor, entry] : tensors_) {
    if (file_of_tensor.count(tensor) == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(entry.file->path(), ": tensor ", Quoted(tensor),
                       " is not in the weight_map of ", index));
    }
  }
  return absl::OkStatus();
}

absl::Status TensorSet::AddFile(const std::string& path) {
  ASSIGN_OR_RETURN(SafetensorsFile opened, SafetensorsFile::Open(path));
  files_.push_back(std::make_unique<SafetensorsFile>(std::move(opened)));
  const SafetensorsFile* file = files_.back().get();
  for (const TensorInfo& info : file->tensors()) {
    const auto [other, added] = tensors_.emplace(info.name, Entry{&info, file});
    if (!added) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", Quoted(info.name), " is both in ",
                       other->second.file->path(), " and in ", path));
    }
  }
  return absl::OkStatus();
}

}  // namespace lockstep
