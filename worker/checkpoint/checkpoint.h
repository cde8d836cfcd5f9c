// Checkpoints: a training state on the disk, in logical space, so that any
// number of ranks at any ZeRO stage reads what any other has written.
//
//   FOLDER/part-00000-of-00003.safetensors   what rank 0 of 3 owned
//   FOLDER/part-00001-of-00003.safetensors
//   FOLDER/part-00002-of-00003.safetensors
//   FOLDER/manifest.json                     written last
//
// A part holds pieces of tensors, flat, in float32, under names that say which:
// "moment1/transformer.wte.weight@4096" begins at element 4,096 of the tensor.
// All parts together hold every element of every tensor once, as parameter,
// moment1 and moment2.
//
// The manifest says whose checkpoint it is, everything of the state that is no
// tensor, and each part's size and SHA-256.  Parts are written by many and the
// manifest by one, who reads what the others have left beside their parts
// (PART.json); then the folder gets its name: that is the commit.
#ifndef WORKER_CHECKPOINT_CHECKPOINT_H_
#define WORKER_CHECKPOINT_CHECKPOINT_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/layout.h"
#include "common/model_config.h"
#include "common/session.h"
#include "worker/checkpoint/safetensors.h"

namespace lockstep {

// What there is of every element.
inline constexpr int kStateKindCount = 3;
inline constexpr const char* kStateKindNames[kStateKindCount] = {
    "parameter", "moment1", "moment2"};

// Everything of a state but its tensors, and whose it is.
struct CheckpointInfo {
  std::string job;
  int64_t generation = 0;  // That wrote it.
  int64_t step_count = 0;  // Committed; the next step's number.
  std::string spec_digest;
  std::string data_digest;
  std::string numeric_class;
  ModelConfig model;
  double dropout = 0;
  std::string source_folder;  // Where the model came from; may be empty.

  int64_t update_count = 0;      // Steps that were applied.
  int64_t skipped_in_a_row = 0;  // Steps before this that were not.
  // Of each tensor of the layout: what its exact unit follows, newest last.
  std::vector<std::vector<int32_t>> unit_powers;

  // Whose the steps are; together all of them.
  std::vector<LedgerRow> ledger;

  friend bool operator==(const CheckpointInfo&,
                         const CheckpointInfo&) = default;
};

// Elements of one tensor, and their values.
struct CheckpointPiece {
  int tensor = 0;     // Index into Layout::tensors.
  int64_t begin = 0;  // Element of the tensor.
  int64_t element_count = 0;
  std::array<const float*, kStateKindCount> values = {};  // Host memory.
};

// Writes rank `rank`'s part into `folder`, and syncs it.  Pieces of a tensor
// that follow each other may be given as one or as several.  `on_progress` is
// called now and then; an error from it ends the writing.
//
// Errors: AlreadyExists: there is one; ResourceExhausted, ...: as the disk
// says, naming the file; what on_progress returned.
absl::Status WriteCheckpointPart(
    const std::string& folder, int rank, int world, const Layout& layout,
    absl::Span<const CheckpointPiece> pieces,
    const std::function<absl::Status()>& on_progress = [] {
      return absl::OkStatus();
    });

// Once all parts are there: writes the manifest and gives the folder its name,
// durably.
//
// Errors: AlreadyExists: something has that name; NotFound, DataLoss: a part is
// not to be seen here as its writer left it; otherwise as the disk says.
absl::Status CommitCheckpoint(const std::string& folder,
                              const CheckpointInfo& info, int world,
                              const std::string& final_path);

// One that is complete.  Thread-safe.
class Checkpoint {
 public:
  // Reads the manifest and the parts' headers, and checks that they are all of
  // the state; not the values, see Verify.
  //
  // Errors (each names the file):
  //   NotFound: there is no manifest, or a part is missing.
  //   InvalidArgument: the manifest is none, or not of this version.
  //   DataLoss: a part has another size than the manifest says, or the parts
  //     lack elements or have them twice.
  static absl::StatusOr<Checkpoint> Open(const std::string& folder);

  const std::string& folder() const { return folder_; }
  const CheckpointInfo& info() const { return info_; }
  const Layout& layout() const { return layout_; }

  // Where files of the model are that are no weights (a tokenizer's): the
  // folder that training once started from, if it is still there; else empty.
  std::string source_folder() const;

  // Fills the values of unit `unit`: (unit.range.element_count), padding too.
  //
  // Errors: as Read's.
  absl::Status ReadUnit(int unit, float* values) const;

  // SHA-256 of the manifest, in hexadecimal: of all that is in the checkpoint.
  const std::string& digest() const { return digest_; }

  int64_t byte_count() const;  // Of all parts.
  int part_count() const { return static_cast<int>(parts_.size()); }

  // Reads all parts and compares them with the manifest.  `on_progress`: as
  // above.
  //
  // Errors: DataLoss: a part is not what was written; names it.
  absl::Status Verify(const std::function<absl::Status()>& on_progress = [] {
    return absl::OkStatus();
  }) const;

  // Elements [begin, begin + count) of a tensor, as kind `kind`.
  //
  // Errors: as the disk says; names the file.
  absl::Status Read(int kind, int tensor, int64_t begin, int64_t count,
                    float* out) const;

 private:
  struct Part {
    std::string name;
    int64_t byte_count = 0;
    std::string sha256;
  };
  // Where elements of a tensor are, from `begin` to the next one's.
  struct Place {
    int64_t begin = 0;
    int64_t element_count = 0;
    const SafetensorsFile* file = nullptr;
    const TensorInfo* info = nullptr;
  };

  Checkpoint() = default;
  absl::Status ReadManifest();
  absl::Status MapParts();
  absl::Status CheckPlaces();

  std::string folder_;
  std::string digest_;
  CheckpointInfo info_;
  Layout layout_;
  std::vector<Part> parts_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  // Of each tensor and kind, in order of `begin`.
  std::vector<std::array<std::vector<Place>, kStateKindCount>> places_;
};

// Whether `folder` has a manifest: a model's folder has none.
bool IsCheckpoint(const std::string& folder);

// Name of the checkpoint after this many steps: "step-000000000100".
std::string CheckpointName(int64_t step_count);

// Whether `name` is one, and of how many steps.
bool ParseCheckpointName(const std::string& name, int64_t* step_count);

// The step counts of the checkpoints in `folder`, complete or not, newest
// first.  None if there is no such folder.
//
// Errors: as the disk says.
absl::StatusOr<std::vector<int64_t>> ListCheckpoints(const std::string& folder);

}  // namespace lockstep

#endif  // WORKER_CHECKPOINT_CHECKPOINT_H_
