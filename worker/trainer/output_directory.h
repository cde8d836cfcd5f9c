// Where a job's result goes, and how it gets there whole or not at all.
//
//   OUT/                                     the job's output_directory
//   OUT/.lockstep-JOB-gG-RANDOM/             rank 0 of generation G, unfinished
//   OUT/.lockstep-JOB-gG-RANDOM/nonce        for the other ranks to find
//   OUT/.lockstep-JOB-gG-RANDOM/model/       being written
//   OUT/model/                               the result, a Hugging Face folder
//
// The folder of a generation is created exclusively, and its nonce is locked
// (flock) for as long as the rank lives: so a folder whose owner died is known,
// whoever's it was, and another job at work in the same place too.  The rename
// of model/ to OUT/model, on the coordinator's word, is the commit.  An
// existing model is never replaced.  OUT/model/lockstep.json says whose it is,
// so that a job that committed just before everything died knows its own result
// again.
#ifndef WORKER_TRAINER_OUTPUT_DIRECTORY_H_
#define WORKER_TRAINER_OUTPUT_DIRECTORY_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ids.h"
#include "worker/link/unique_fd.h"

namespace lockstep {

class OutputDirectory {
 public:
  // For rank 0: creates what is missing, removes what earlier generations of
  // this job and dead ones of any job left, and makes this generation's folder
  // with its nonce.  `random`
  // makes the folder's name unique: 1 to 32 hexadecimal digits.
  //
  // Errors:
  //   AlreadyExists: OUT/model is there and not this job's.
  //   FailedPrecondition: another job is at work in OUT.
  //   Otherwise: the folder cannot be made or written; names the path.
  static absl::StatusOr<std::unique_ptr<OutputDirectory>> Claim(
      const std::string& output_directory, const GenerationKey& key,
      const std::string& random);

  // For the other ranks: whether this process sees what rank 0 made.
  //
  // Errors:
  //   NotFound: it does not; the path is not the same folder here as there.
  static absl::Status Verify(const std::string& output_directory,
                             const std::string& nonce);

  // Removes this generation's folder, but for a model that could not be
  // committed, and OUT itself if that leaves it empty and Claim made it.
  ~OutputDirectory();

  // OUT/model is this job's, from an earlier generation.
  bool already_committed() const { return already_committed_; }

  // What the other ranks look for; one path component.
  const std::string& nonce() const { return nonce_; }

  // An empty path to write the model's folder to; its files are to be synced.
  std::string model_path() const;

  // Renames the model's folder to OUT/model, durably.  Again after success: OK.
  //
  // A model that cannot be put there is not thrown away: it goes to
  // OUT/model-JOB, or stays where it is, and the error says which.
  //
  // Errors:
  //   AlreadyExists: OUT/model has come to be meanwhile.
  //   Otherwise: as the disk says.
  absl::Status Commit();

  // Removes what dead ranks of `job` left in `output_directory`.
  static void RemoveLeftovers(const std::string& output_directory,
                              const JobId& job);

 private:
  OutputDirectory(std::string output_directory, GenerationKey key,
                  std::string nonce)
      : output_directory_(std::move(output_directory)),
        key_(std::move(key)),
        nonce_(std::move(nonce)) {}

  absl::Status Publish(const std::string& path);

  const std::string output_directory_;
  const GenerationKey key_;
  const std::string nonce_;
  UniqueFd nonce_lock_;
  bool made_directory_ = false;
  bool already_committed_ = false;
  bool committed_ = false;
  bool keep_ = false;  // A model is in the folder that goes nowhere else.
};

}  // namespace lockstep

#endif  // WORKER_TRAINER_OUTPUT_DIRECTORY_H_
