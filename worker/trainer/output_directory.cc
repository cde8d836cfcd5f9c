#include "worker/trainer/output_directory.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/durable_file.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr char kMarkerName[] = "lockstep.json";

absl::Status SystemError(const std::string& what, const std::error_code& code) {
  return absl::ErrnoToStatus(code.value(),
                             absl::StrCat("output_directory: ", what));
}

std::string FolderPrefix(const JobId& job) {
  return absl::StrCat(".lockstep-", job.value, "-g");
}

// The generation of an unfinished folder of `job`; 0 if `name` is none.
int64_t GenerationOf(const std::string& name, const JobId& job) {
  const std::string prefix = FolderPrefix(job);
  if (!absl::StartsWith(name, prefix)) return 0;
  const size_t end = name.find('-', prefix.size());
  int64_t generation = 0;
  if (end == std::string::npos ||
      !absl::SimpleAtoi(name.substr(prefix.size(), end - prefix.size()),
                        &generation)) {
    return 0;
  }
  return generation;
}

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream content;
  content << in.rdbuf();
  return content.str();
}

// The job whose result the model folder is; empty if nobody's that we know.
std::string OwnerOf(const std::string& model_folder) {
  const auto json = nlohmann::json::parse(
      ReadAll(absl::StrCat(model_folder, "/", kMarkerName)), nullptr,
      /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("job") || !json["job"].is_string()) {
    return "";
  }
  return json["job"].get<std::string>();
}

}  // namespace

absl::StatusOr<std::unique_ptr<OutputDirectory>> OutputDirectory::Claim(
    const std::string& output_directory, const GenerationKey& key,
    const std::string& random) {
  const std::string nonce =
      absl::StrCat(FolderPrefix(key.job), key.generation, "-", random);
  auto output = std::unique_ptr<OutputDirectory>(
      new OutputDirectory(output_directory, key, nonce));

  std::error_code error;
  const std::string model = absl::StrCat(output_directory, "/model");
  const bool model_is_there = fs::exists(fs::symlink_status(model, error));
  if (model_is_there) {
    if (OwnerOf(model) != key.job.value) {
      return absl::AlreadyExistsError(absl::StrCat(
          "output_directory: ", model,
          " is there already, and a model is "
          "never overwritten; choose another output_directory, or move it "
          "away"));
    }
    output->already_committed_ = true;
  }

  output->made_directory_ = fs::create_directories(output_directory, error);
  if (error) {
    return SystemError(absl::StrCat("cannot create ", output_directory), error);
  }
  // What an earlier generation left when it was killed.  A later one of the
  // same job cannot be there: this one would not be told to begin.
  std::vector<fs::path> leftovers;
  for (fs::directory_iterator it(output_directory, error), end;
       !error && it != end; it.increment(error)) {
    const int64_t generation =
        GenerationOf(it->path().filename().string(), key.job);
    if (generation > 0 && generation < key.generation) {
      leftovers.push_back(it->path());
    }
  }
  if (error) {
    return SystemError(absl::StrCat("cannot list ", output_directory), error);
  }
  for (const fs::path& path : leftovers) {
    fs::remove_all(path, error);
    if (error) {
      return SystemError(absl::StrCat("cannot remove ", path.string()), error);
    }
  }
  const std::string folder = absl::StrCat(output_directory, "/", nonce);
  if (absl::Status status = CreateNewFolder(folder); !status.ok()) {
    return Annotate(status, "output_directory");
  }
  if (absl::Status status = WriteNewFile(absl::StrCat(folder, "/nonce"), nonce);
      !status.ok()) {
    return Annotate(status, "output_directory");
  }
  return output;
}

absl::Status OutputDirectory::Verify(const std::string& output_directory,
                                     const std::string& nonce) {
  const std::string path = absl::StrCat(output_directory, "/", nonce, "/nonce");
  if (!nonce.empty() && nonce.find('/') == std::string::npos &&
      ReadAll(path) == nonce) {
    return absl::OkStatus();
  }
  return absl::NotFoundError(absl::StrCat(
      "output_directory: ", path,
      ", which the worker of rank 0 has just "
      "written, is not to be seen here; the path must lead to the same folder "
      "on every worker of the job"));
}

OutputDirectory::~OutputDirectory() {
  std::error_code ignored;
  fs::remove_all(absl::StrCat(output_directory_, "/", nonce_), ignored);
  // Fails, as it should, when something is in it.
  if (made_directory_) fs::remove(output_directory_, ignored);
}

std::string OutputDirectory::model_path() const {
  return absl::StrCat(output_directory_, "/", nonce_, "/model");
}

absl::Status OutputDirectory::Commit() {
  if (committed_ || already_committed_) return absl::OkStatus();
  nlohmann::json marker;
  marker["job"] = key_.job.value;
  marker["generation"] = key_.generation;
  const std::string marker_path = absl::StrCat(model_path(), "/", kMarkerName);
  std::error_code error;
  if (!fs::exists(marker_path, error)) {
    RETURN_IF_ERROR(WriteNewFile(marker_path, marker.dump(1) + "\n"));
    RETURN_IF_ERROR(SyncFolder(model_path()));
  }
  const std::string model = absl::StrCat(output_directory_, "/model");
  const absl::Status status = PublishFolder(model_path(), model);
  // An earlier generation, cut off from the coordinator, may have been told to
  // commit and done so meanwhile: the same bits.
  if (!status.ok() &&
      !(absl::IsAlreadyExists(status) && OwnerOf(model) == key_.job.value)) {
    return Annotate(status, "output_directory");
  }
  committed_ = true;
  // At once, and not at the end of this object: the process may be killed as
  // soon as the coordinator knows that the job is done.
  fs::remove_all(absl::StrCat(output_directory_, "/", nonce_), error);
  return absl::OkStatus();
}

}  // namespace lockstep
