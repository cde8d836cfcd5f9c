#include "worker/trainer/output_directory.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
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

constexpr char kFolderPrefix[] = ".lockstep-";
constexpr char kUnnamedPrefix[] = ".new";

std::string FolderName(const GenerationKey& key, const std::string& random) {
  return absl::StrCat(kFolderPrefix, key.job.value, "-g", key.generation, "-",
                      random);
}

// Whose unfinished folder this is; nobody's if it is none.
std::optional<GenerationKey> OwnerOfFolder(const std::string& name) {
  if (!absl::StartsWith(name, kFolderPrefix)) return std::nullopt;
  // A job's id may have hyphens of its own.
  const size_t last = name.rfind('-');
  const size_t generation_at = name.rfind("-g", last - 1);
  const size_t begin = std::strlen(kFolderPrefix);
  GenerationKey key;
  if (last == std::string::npos || generation_at == std::string::npos ||
      generation_at <= begin ||
      !absl::SimpleAtoi(
          name.substr(generation_at + 2, last - generation_at - 2),
          &key.generation)) {
    return std::nullopt;
  }
  key.job.value = name.substr(begin, generation_at - begin);
  return key;
}

// The lock on a folder's nonce; none if somebody has it, or if there is nothing
// to lock.
UniqueFd TryLockNonce(const std::string& folder) {
  UniqueFd nonce(open(absl::StrCat(folder, "/nonce").c_str(),
                      O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (nonce.get() >= 0 && flock(nonce.get(), LOCK_EX | LOCK_NB) != 0) {
    return UniqueFd();
  }
  return nonce;
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

// Errors: FailedPrecondition: a job other than `job` is at work in the folder.
absl::Status CheckForOthers(const std::string& output_directory,
                            const JobId& job) {
  std::error_code error;
  for (fs::directory_iterator it(output_directory, error), end;
       !error && it != end; it.increment(error)) {
    const auto owner = OwnerOfFolder(it->path().filename().string());
    if (!owner.has_value() || owner->job == job ||
        TryLockNonce(it->path().string()).has_value() ||
        !fs::exists(it->path() / "nonce", error)) {
      continue;
    }
    return absl::FailedPreconditionError(absl::StrCat(
        "output_directory: ", output_directory, " is in use: jobs/",
        owner->job.value,
        " is at work in it; choose another output_directory, or cancel that "
        "job"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<OutputDirectory>> OutputDirectory::Claim(
    const std::string& output_directory, const GenerationKey& key,
    const std::string& random) {
  const std::string nonce = FolderName(key, random);
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
  // What was left by ranks that were killed.  Of this job an earlier
  // generation's goes even if its rank still lives somewhere: it was fenced
  // off.
  std::vector<fs::path> leftovers;
  for (fs::directory_iterator it(output_directory, error), end;
       !error && it != end; it.increment(error)) {
    const auto owner = OwnerOfFolder(it->path().filename().string());
    if (!owner.has_value()) continue;
    if (owner->job == key.job && owner->generation < key.generation) {
      leftovers.push_back(it->path());
      continue;
    }
    const UniqueFd lock = TryLockNonce(it->path().string());
    if (lock.has_value()) {
      leftovers.push_back(it->path());
    }
  }
  if (error) {
    return SystemError(absl::StrCat("cannot list ", output_directory), error);
  }
  RETURN_IF_ERROR(CheckForOthers(output_directory, key.job));
  for (const fs::path& path : leftovers) {
    fs::remove_all(path, error);
    if (error) {
      return SystemError(absl::StrCat("cannot remove ", path.string()), error);
    }
  }
  // Not to be taken for a leftover before its nonce is locked: until then under
  // another name.
  const std::string folder = absl::StrCat(output_directory, "/", nonce);
  const std::string unnamed =
      absl::StrCat(output_directory, "/", kUnnamedPrefix, nonce);
  if (absl::Status status = CreateNewFolder(unnamed); !status.ok()) {
    return Annotate(status, "output_directory");
  }
  absl::Status status = WriteNewFile(absl::StrCat(unnamed, "/nonce"), nonce);
  if (status.ok()) {
    // Some network file systems have no locks; then leftovers just stay.
    output->nonce_lock_ = TryLockNonce(unnamed);
    status = PublishFolder(unnamed, folder);
  }
  if (!status.ok()) {
    fs::remove_all(unnamed, error);
    return Annotate(status, "output_directory");
  }
  // Another may have come at the same time; each looks after it can be seen.
  RETURN_IF_ERROR(CheckForOthers(output_directory, key.job));
  // Now, and not when the disk has filled up.
  nlohmann::json marker;
  marker["job"] = key.job.value;
  marker["generation"] = key.generation;
  status = WriteNewFile(absl::StrCat(folder, "/", kMarkerName),
                        marker.dump(1) + "\n");
  if (!status.ok()) return Annotate(status, "output_directory");
  return output;
}

void OutputDirectory::RemoveLeftovers(const std::string& output_directory,
                                      const JobId& job) {
  std::error_code error;
  std::vector<fs::path> leftovers;
  for (fs::directory_iterator it(output_directory, error), end;
       !error && it != end; it.increment(error)) {
    const auto owner = OwnerOfFolder(it->path().filename().string());
    if (owner.has_value() && owner->job == job &&
        TryLockNonce(it->path().string()).has_value()) {
      leftovers.push_back(it->path());
    }
  }
  for (const fs::path& path : leftovers) fs::remove_all(path, error);
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
  if (keep_) return;
  std::error_code ignored;
  fs::remove_all(absl::StrCat(output_directory_, "/", nonce_), ignored);
  // Fails, as it should, when something is in it.
  if (made_directory_) fs::remove(output_directory_, ignored);
}

std::string OutputDirectory::model_path() const {
  return absl::StrCat(output_directory_, "/", nonce_, "/model");
}

absl::Status OutputDirectory::Publish(const std::string& path) {
  const std::string from =
      absl::StrCat(output_directory_, "/", nonce_, "/", kMarkerName);
  std::error_code error;
  if (fs::exists(from, error)) {
    fs::rename(from, absl::StrCat(model_path(), "/", kMarkerName), error);
    if (error) return SystemError(absl::StrCat("cannot rename ", from), error);
    RETURN_IF_ERROR(SyncFolder(model_path()));
  }
  return PublishFolder(model_path(), path);
}

absl::Status OutputDirectory::Commit() {
  if (committed_ || already_committed_) return absl::OkStatus();
  const std::string model = absl::StrCat(output_directory_, "/model");
  const absl::Status status = Publish(model);
  // An earlier generation, cut off from the coordinator, may have been told to
  // commit and done so meanwhile: the same bits.
  if (!status.ok() &&
      !(absl::IsAlreadyExists(status) && OwnerOf(model) == key_.job.value)) {
    const std::string elsewhere = absl::StrCat(model, "-", key_.job.value);
    keep_ = !Publish(elsewhere).ok();
    // Without its nonce it is nobody's leftover.
    std::error_code ignored;
    if (keep_) {
      fs::remove(absl::StrCat(output_directory_, "/", nonce_, "/nonce"),
                 ignored);
    }
    return Annotate(status,
                    absl::StrCat("output_directory: the trained model could "
                                 "not be put in its place and is in ",
                                 keep_ ? model_path() : elsewhere));
  }
  committed_ = true;
  std::error_code error;
  // At once, and not at the end of this object: the process may be killed as
  // soon as the coordinator knows that the job is done.
  fs::remove_all(absl::StrCat(output_directory_, "/", nonce_), error);
  return absl::OkStatus();
}

}  // namespace lockstep
