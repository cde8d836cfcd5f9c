#include "worker/checkpoint/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "common/sha256.h"
#include "common/status.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/durable_file.h"
#include "worker/checkpoint/gpt2_config.h"
#include "worker/checkpoint/llama_config.h"
#include "worker/checkpoint/safetensors_writer.h"
#include "worker/checkpoint/strict_json.h"
#include "worker/data/random_access_file.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kFormat[] = "lockstep checkpoint";
constexpr int kVersion = 1;
constexpr char kManifestName[] = "manifest.json";
constexpr char kDigestField[] = "sha256";
constexpr char kNamePrefix[] = "step-";

// Read, hashed and written at once.
constexpr int64_t kBlockBytes = int64_t{1} << 20;
constexpr int64_t kFloat = sizeof(float);

std::string PartName(int rank, int world) {
  return absl::StrFormat("part-%05d-of-%05d.safetensors", rank, world);
}

std::string PieceName(int kind, const std::string& tensor, int64_t begin) {
  return absl::StrCat(kStateKindNames[kind], "/", tensor, "@", begin);
}

struct FileDigest {
  int64_t byte_count = 0;
  std::string sha256;
};

absl::StatusOr<FileDigest> DigestFile(
    const std::string& path, const std::function<absl::Status()>& on_progress) {
  ASSIGN_OR_RETURN(const RandomAccessFile file, RandomAccessFile::Open(path));
  Sha256 hash;
  std::vector<char> block(kBlockBytes);
  for (int64_t done = 0; done < file.size(); done += kBlockBytes) {
    const int64_t count = std::min(kBlockBytes, file.size() - done);
    RETURN_IF_ERROR(file.ReadAt(done, count, block.data()));
    hash.Update(block.data(), count);
    RETURN_IF_ERROR(on_progress());
  }
  return FileDigest{file.size(), hash.HexDigest()};
}

// Of all that it says but for this.
std::string ManifestDigest(json manifest) {
  manifest.erase(kDigestField);
  const std::string bytes = manifest.dump();
  Sha256 hash;
  hash.Update(bytes.data(), static_cast<int64_t>(bytes.size()));
  return hash.HexDigest();
}

json ToJson(const CheckpointInfo& info) {
  json j;
  j["job"] = info.job;
  j["generation"] = info.generation;
  j["step_count"] = info.step_count;
  j["spec_digest"] = info.spec_digest;
  j["data_digest"] = info.data_digest;
  j["numeric_class"] = info.numeric_class;
  j["model"] = info.model.is_gpt2()
                   ? MakeGpt2Config(json::object(), info.model, info.dropout)
                   : MakeLlamaConfig(json::object(), info.model, info.dropout);
  j["dropout"] = info.dropout;
  j["source_folder"] = info.source_folder;
  j["update_count"] = info.update_count;
  j["skipped_in_a_row"] = info.skipped_in_a_row;
  json& ledger = j["ledger"] = json::array();
  for (const LedgerRow& row : info.ledger) {
    json& r = ledger.emplace_back();
    r["generation"] = row.generation;
    r["plan_version"] = row.plan_version;
    r["first_step"] = row.first_step;
    r["end_step"] = row.end_step;
    json& workers = r["workers"] = json::array();
    for (size_t i = 0; i < row.workers.size(); ++i) {
      json& worker = workers.emplace_back();
      worker["name"] = row.workers[i].value;
      worker["first"] = row.micro_batches[i].first;
      worker["count"] = row.micro_batches[i].count;
    }
  }
  json& units = j["unit_powers"] = json::object();
  const Layout layout = MakeLayout(info.model);
  LS_CHECK(info.unit_powers.size() == layout.tensors.size());
  for (size_t t = 0; t < layout.tensors.size(); ++t) {
    units[layout.tensors[t].name] = info.unit_powers[t];
  }
  return j;
}

// Reads fields of the manifest.  The first error stays.
class ManifestReader {
 public:
  explicit ManifestReader(const json& manifest) : json_(manifest) {}

  const absl::Status& status() const { return status_; }

  std::string Text(const char* name) {
    const json* value = Find(name);
    if (value == nullptr) return "";
    if (!value->is_string()) {
      Fail(name, "text");
      return "";
    }
    return value->get<std::string>();
  }
  int64_t Count(const char* name) {
    const json* value = Find(name);
    if (value == nullptr) return 0;
    if (!value->is_number_unsigned() ||
        value->get<uint64_t>() > (uint64_t{1} << 62)) {
      Fail(name, "a whole number, 0 or more");
      return 0;
    }
    return value->get<int64_t>();
  }
  double Number(const char* name) {
    const json* value = Find(name);
    if (value == nullptr) return 0;
    if (!value->is_number()) {
      Fail(name, "a number");
      return 0;
    }
    return value->get<double>();
  }
  const json* Find(const char* name) {
    if (!status_.ok()) return nullptr;
    if (!json_.is_object()) {
      status_ = absl::InvalidArgumentError("expected a JSON object");
      return nullptr;
    }
    const auto it = json_.find(name);
    if (it != json_.end()) return &*it;
    status_ = absl::InvalidArgumentError(absl::StrCat(name, " is missing"));
    return nullptr;
  }
  void Fail(const std::string& name, const char* expected) {
    if (!status_.ok()) return;
    status_ =
        absl::InvalidArgumentError(absl::StrCat(name, ": expected ", expected));
  }

 private:
  const json& json_;
  absl::Status status_;
};

// Rows that have each of `step_count` steps once.
absl::StatusOr<std::vector<LedgerRow>> ParseLedger(const json& list,
                                                   int64_t step_count) {
  if (!list.is_array()) {
    return absl::InvalidArgumentError("ledger: expected a list");
  }
  std::vector<LedgerRow> ledger;
  int64_t next = 0;
  for (const json& entry : list) {
    ManifestReader reader(entry);
    LedgerRow& row = ledger.emplace_back();
    row.generation = reader.Count("generation");
    row.plan_version = reader.Count("plan_version");
    row.first_step = reader.Count("first_step");
    row.end_step = reader.Count("end_step");
    const json* workers = reader.Find("workers");
    RETURN_IF_ERROR(Annotate(reader.status(), "ledger"));
    if (row.first_step != next || row.end_step < next || !workers->is_array()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "ledger: expected rows that have each step once, and workers"));
    }
    next = row.end_step;
    for (const json& worker : *workers) {
      ManifestReader fields(worker);
      row.workers.push_back({fields.Text("name")});
      const int64_t first = fields.Count("first");
      row.micro_batches.push_back({first, fields.Count("count")});
      RETURN_IF_ERROR(Annotate(fields.status(), "ledger: workers"));
    }
  }
  if (next != step_count) {
    return absl::InvalidArgumentError(
        absl::StrCat("ledger: expected rows up to step_count, ", step_count,
                     ", they end at ", next));
  }
  return ledger;
}

absl::StatusOr<CheckpointInfo> ParseInfo(const json& manifest) {
  ManifestReader reader(manifest);
  CheckpointInfo info;
  info.job = reader.Text("job");
  info.generation = reader.Count("generation");
  info.step_count = reader.Count("step_count");
  info.spec_digest = reader.Text("spec_digest");
  info.data_digest = reader.Text("data_digest");
  info.numeric_class = reader.Text("numeric_class");
  info.dropout = reader.Number("dropout");
  info.source_folder = reader.Text("source_folder");
  info.update_count = reader.Count("update_count");
  info.skipped_in_a_row = reader.Count("skipped_in_a_row");
  const json* model = reader.Find("model");
  const json* units = reader.Find("unit_powers");
  const json* ledger = reader.Find("ledger");
  RETURN_IF_ERROR(reader.status());
  ASSIGN_OR_RETURN(info.ledger, ParseLedger(*ledger, info.step_count));
  if (!model->is_object() || !units->is_object()) {
    return absl::InvalidArgumentError(
        "model, unit_powers: expected JSON objects");
  }
  const auto type = model->find("model_type");
  const bool gpt2 = type != model->end() && *type == "gpt2";
  ASSIGN_OR_RETURN(info.model,
                   gpt2 ? ParseGpt2Config(*model) : ParseLlamaConfig(*model));
  const Layout layout = MakeLayout(info.model);
  for (const Tensor& tensor : layout.tensors) {
    std::vector<int32_t>& powers = info.unit_powers.emplace_back();
    const auto entry = units->find(tensor.name);
    const bool sound =
        entry != units->end() && entry->is_array() && entry->size() <= 64 &&
        std::all_of(entry->begin(), entry->end(), [](const json& power) {
          return power.is_number_integer() && power >= -4096 && power <= 4096;
        });
    if (!sound) {
      return absl::InvalidArgumentError(absl::StrCat(
          "unit_powers: expected up to 64 whole numbers of ", tensor.name));
    }
    powers = entry->get<std::vector<int32_t>>();
  }
  if (units->size() != layout.tensors.size()) {
    return absl::InvalidArgumentError(
        "unit_powers: a tensor is named that the model does not have");
  }
  return info;
}

}  // namespace

absl::Status WriteCheckpointPart(
    const std::string& folder, int rank, int world, const Layout& layout,
    absl::Span<const CheckpointPiece> pieces,
    const std::function<absl::Status()>& on_progress) {
  std::vector<TensorSpec> specs;
  for (int kind = 0; kind < kStateKindCount; ++kind) {
    for (const CheckpointPiece& piece : pieces) {
      specs.push_back(
          {PieceName(kind, layout.tensors[piece.tensor].name, piece.begin),
           Dtype::kF32,
           {piece.element_count}});
    }
  }
  const std::string path = absl::StrCat(folder, "/", PartName(rank, world));
  ASSIGN_OR_RETURN(SafetensorsWriter writer,
                   SafetensorsWriter::Create(path, std::move(specs)));
  for (int kind = 0; kind < kStateKindCount; ++kind) {
    for (const CheckpointPiece& piece : pieces) {
      const std::string name =
          PieceName(kind, layout.tensors[piece.tensor].name, piece.begin);
      const int64_t bytes = piece.element_count * kFloat;
      const auto* values = reinterpret_cast<const char*>(piece.values[kind]);
      for (int64_t done = 0; done < bytes; done += kBlockBytes) {
        RETURN_IF_ERROR(writer.Append(name, values + done,
                                      std::min(kBlockBytes, bytes - done)));
        RETURN_IF_ERROR(on_progress());
      }
    }
  }
  RETURN_IF_ERROR(writer.Finish());
  ASSIGN_OR_RETURN(const FileDigest digest, DigestFile(path, on_progress));
  json note;
  note["bytes"] = digest.byte_count;
  note["sha256"] = digest.sha256;
  return WriteNewFile(absl::StrCat(path, ".json"), note.dump() + "\n");
}

absl::Status CommitCheckpoint(const std::string& folder,
                              const CheckpointInfo& info, int world,
                              const std::string& final_path) {
  json manifest = ToJson(info);
  manifest["format"] = kFormat;
  manifest["version"] = kVersion;
  json& parts = manifest["parts"] = json::array();
  std::vector<std::string> notes;
  for (int rank = 0; rank < world; ++rank) {
    const std::string name = PartName(rank, world);
    const std::string path = absl::StrCat(folder, "/", name);
    notes.push_back(absl::StrCat(path, ".json"));
    ASSIGN_OR_RETURN(const json note, ReadStrictJsonFile(notes.back()));
    ManifestReader reader(note);
    json part;
    part["name"] = name;
    const int64_t bytes = reader.Count("bytes");
    part["bytes"] = bytes;
    part["sha256"] = reader.Text("sha256");
    RETURN_IF_ERROR(Annotate(reader.status(), notes.back()));
    std::error_code error;
    const auto size = fs::file_size(path, error);
    if (error || static_cast<int64_t>(size) != bytes) {
      return absl::DataLossError(absl::StrCat(
          path, ": expected the ", bytes,
          " bytes that its rank has written; every worker must see the same "
          "folder under this path"));
    }
    parts.push_back(std::move(part));
  }
  manifest[kDigestField] = ManifestDigest(manifest);
  RETURN_IF_ERROR(WriteNewFile(absl::StrCat(folder, "/", kManifestName),
                               manifest.dump(1) + "\n"));
  for (const std::string& note : notes) {
    std::error_code ignored;
    fs::remove(note, ignored);
  }
  RETURN_IF_ERROR(SyncFolder(folder));
  return PublishFolder(folder, final_path);
}

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& folder) {
  Checkpoint checkpoint;
  checkpoint.folder_ = folder;
  RETURN_IF_ERROR(checkpoint.ReadManifest());
  checkpoint.layout_ = MakeLayout(checkpoint.info_.model);
  RETURN_IF_ERROR(checkpoint.MapParts());
  RETURN_IF_ERROR(checkpoint.CheckPlaces());
  return checkpoint;
}

absl::Status Checkpoint::ReadManifest() {
  const std::string path = absl::StrCat(folder_, "/", kManifestName);
  std::error_code error;
  if (!fs::exists(path, error)) {
    return absl::NotFoundError(
        absl::StrCat(folder_, ": no checkpoint: there is no ", kManifestName,
                     " in it; expected a folder such as OUT/checkpoints/",
                     CheckpointName(1000)));
  }
  ASSIGN_OR_RETURN(const json manifest, ReadStrictJsonFile(path));
  ASSIGN_OR_RETURN(const FileDigest digest,
                   DigestFile(path, [] { return absl::OkStatus(); }));
  digest_ = digest.sha256;
  const auto parse = [&]() -> absl::Status {
    if (!manifest.is_object()) {
      return absl::InvalidArgumentError("expected a JSON object");
    }
    ManifestReader reader(manifest);
    if (reader.Text("format") != kFormat) {
      reader.Fail("format", kFormat);
    } else if (reader.Count("version") != kVersion) {
      reader.Fail("version", "1, the only one that this build reads");
    }
    const json* parts = reader.Find("parts");
    RETURN_IF_ERROR(reader.status());
    ASSIGN_OR_RETURN(info_, ParseInfo(manifest));
    if (!parts->is_array() || parts->empty()) {
      return absl::InvalidArgumentError("parts: expected a list");
    }
    for (const json& entry : *parts) {
      ManifestReader fields(entry);
      Part& part = parts_.emplace_back();
      part.name = fields.Text("name");
      part.byte_count = fields.Count("bytes");
      part.sha256 = fields.Text("sha256");
      if (part.name.empty() || part.name.find('/') != std::string::npos) {
        fields.Fail("parts: name", "the name of a file in the folder");
      }
      RETURN_IF_ERROR(fields.status());
    }
    const std::string sha256 = reader.Text(kDigestField);
    RETURN_IF_ERROR(reader.status());
    if (sha256 != ManifestDigest(manifest)) {
      return absl::DataLossError(
          absl::StrCat("its contents are not those of its own ", kDigestField,
                       ": it was changed after it was written"));
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(Annotate(parse(), path));
  int64_t named = 0;
  if (ParseCheckpointName(fs::path(folder_).filename().string(), &named) &&
      named != info_.step_count) {
    return absl::DataLossError(absl::StrCat(
        path, ": step_count: expected the number in the folder's name, got ",
        info_.step_count));
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::MapParts() {
  places_.resize(layout_.tensors.size());
  std::map<std::string, int> tensors;
  for (size_t t = 0; t < layout_.tensors.size(); ++t) {
    tensors[layout_.tensors[t].name] = static_cast<int>(t);
  }
  for (const Part& part : parts_) {
    const std::string path = absl::StrCat(folder_, "/", part.name);
    {
      ASSIGN_OR_RETURN(const RandomAccessFile file,
                       RandomAccessFile::Open(path));
      if (file.size() != part.byte_count) {
        return absl::DataLossError(
            absl::StrCat(path, ": expected ", part.byte_count,
                         " bytes, as the manifest says, found ", file.size()));
      }
    }
    ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path));
    files_.push_back(std::make_unique<SafetensorsFile>(std::move(file)));
    for (const TensorInfo& info : files_.back()->tensors()) {
      const size_t slash = info.name.find('/');
      const size_t at = info.name.rfind('@');
      int kind = 0;
      Place place{.file = files_.back().get(), .info = &info};
      const auto tensor =
          slash == std::string::npos || at == std::string::npos || at < slash
              ? tensors.end()
              : tensors.find(info.name.substr(slash + 1, at - slash - 1));
      while (kind < kStateKindCount &&
             info.name.compare(0, slash, kStateKindNames[kind]) != 0) {
        ++kind;
      }
      if (tensor == tensors.end() || kind == kStateKindCount ||
          !absl::SimpleAtoi(info.name.substr(at + 1), &place.begin) ||
          info.dtype != Dtype::kF32 || info.shape.size() != 1) {
        return absl::DataLossError(
            absl::StrCat(path, ": \"", info.name,
                         "\" is no piece of a tensor of this model"));
      }
      place.element_count = info.shape[0];
      if (place.element_count > 0) {
        places_[tensor->second][kind].push_back(place);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::CheckPlaces() {
  for (size_t t = 0; t < layout_.tensors.size(); ++t) {
    const Tensor& tensor = layout_.tensors[t];
    for (int kind = 0; kind < kStateKindCount; ++kind) {
      std::vector<Place>& places = places_[t][kind];
      std::sort(
          places.begin(), places.end(),
          [](const Place& a, const Place& b) { return a.begin < b.begin; });
      int64_t next = 0;
      for (const Place& place : places) {
        if (place.begin != next) break;
        next += place.element_count;
      }
      if (next == tensor.element_count && !places.empty() &&
          places.back().begin + places.back().element_count == next) {
        continue;
      }
      return absl::DataLossError(absl::StrCat(
          folder_, ": the parts do not have every element of ",
          kStateKindNames[kind], "/", tensor.name, " once, as from element ",
          std::min(next, tensor.element_count)));
    }
  }
  return absl::OkStatus();
}

std::string Checkpoint::source_folder() const {
  std::error_code error;
  return fs::is_directory(info_.source_folder, error) ? info_.source_folder
                                                      : "";
}

absl::Status Checkpoint::ReadUnit(int unit, float* values) const {
  const Unit& u = layout_.units[unit];
  std::fill_n(values, u.range.element_count, 0.0f);
  for (int t = u.first_tensor; t < u.end_tensor; ++t) {
    const Tensor& tensor = layout_.tensors[t];
    RETURN_IF_ERROR(Read(0, t, 0, tensor.element_count,
                         values + tensor.offset - u.range.offset));
  }
  return absl::OkStatus();
}

int64_t Checkpoint::byte_count() const {
  int64_t sum = 0;
  for (const Part& part : parts_) sum += part.byte_count;
  return sum;
}

absl::Status Checkpoint::Verify(
    const std::function<absl::Status()>& on_progress) const {
  for (const Part& part : parts_) {
    const std::string path = absl::StrCat(folder_, "/", part.name);
    ASSIGN_OR_RETURN(const FileDigest digest, DigestFile(path, on_progress));
    if (digest.byte_count == part.byte_count && digest.sha256 == part.sha256) {
      continue;
    }
    return absl::DataLossError(
        absl::StrCat(path, ": expected the SHA-256 ", part.sha256,
                     ", as the manifest says, found ", digest.sha256));
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::Read(int kind, int tensor, int64_t begin,
                              int64_t count, float* out) const {
  LS_CHECK(0 <= kind && kind < kStateKindCount && begin >= 0 &&
           begin + count <= layout_.tensors[tensor].element_count);
  const std::vector<Place>& places = places_[tensor][kind];
  auto place = std::upper_bound(
      places.begin(), places.end(), begin,
      [](int64_t element, const Place& p) { return element < p.begin; });
  if (place != places.begin()) --place;
  while (count > 0) {
    const int64_t from = begin - place->begin;
    const int64_t n = std::min(count, place->element_count - from);
    RETURN_IF_ERROR(
        place->file->Read(*place->info, from * kFloat, n * kFloat, out));
    begin += n;
    count -= n;
    out += n;
    ++place;
  }
  return absl::OkStatus();
}

bool IsCheckpoint(const std::string& folder) {
  std::error_code error;
  return fs::exists(absl::StrCat(folder, "/", kManifestName), error);
}

std::string CheckpointName(int64_t step_count) {
  return absl::StrFormat("%s%012d", kNamePrefix, step_count);
}

bool ParseCheckpointName(const std::string& name, int64_t* step_count) {
  return absl::StartsWith(name, kNamePrefix) &&
         absl::SimpleAtoi(name.substr(sizeof(kNamePrefix) - 1), step_count) &&
         CheckpointName(*step_count) == name;
}

absl::StatusOr<std::vector<int64_t>> ListCheckpoints(
    const std::string& folder) {
  std::vector<int64_t> step_counts;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    int64_t step_count;
    if (ParseCheckpointName(it->path().filename().string(), &step_count)) {
      step_counts.push_back(step_count);
    }
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return absl::ErrnoToStatus(error.value(),
                               absl::StrCat(folder, ": cannot list"));
  }
  std::sort(step_counts.rbegin(), step_counts.rend());
  return step_counts;
}

}  // namespace lockstep
