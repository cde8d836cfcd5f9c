#include "worker/trainer/checkpointer.h"

#include <filesystem>
#include <new>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status.h"
#include "worker/checkpoint/durable_file.h"
#include "worker/comm/named_thread.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// Errors: as mkdir(2) says, but for one that is there.
absl::Status MakeFolder(const std::string& path) {
  const absl::Status made = CreateNewFolder(path);
  return absl::IsAlreadyExists(made) ? absl::OkStatus() : made;
}

void Remove(const std::string& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpointer>> Checkpointer::Create(
    const Layout& layout, OwnedShards owned, const Options& options,
    Clock& clock) {
  std::unique_ptr<Checkpointer> checkpointer(
      new Checkpointer(layout, std::move(owned), options, clock));
  for (std::vector<float>& values : checkpointer->snapshot_) {
    try {
      values.resize(checkpointer->owned_.element_count);
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "not enough memory for the copy that checkpoints are written from, ",
          kStateKindCount * checkpointer->owned_.element_count * sizeof(float),
          " bytes"));
    }
  }
  checkpointer->thread_ =
      StartThread("ls-checkpoint", [c = checkpointer.get()] { c->RunTasks(); });
  return checkpointer;
}

Checkpointer::Checkpointer(const Layout& layout, OwnedShards owned,
                           const Options& options, Clock& clock)
    : layout_(layout),
      owned_(std::move(owned)),
      options_(options),
      clock_(clock),
      last_save_(clock.Now()),
      complete_(options.complete_step_count) {
  LS_CHECK(options.every_steps > 0 || options.every > absl::ZeroDuration());
}

Checkpointer::~Checkpointer() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    tasks_.clear();
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void Checkpointer::AddVotes(int64_t step_count, Votes& votes) {
  MutexLock lock(&mutex_);
  votes.written_step_count = written_;
  votes.failed_step_count = failed_;
  if (options_.rank != 0) return;
  const bool is_last = step_count == options_.max_steps;
  const bool is_free = !pending_.has_value() && !is_busy();
  const bool is_due =
      (options_.every_steps > 0 && step_count % options_.every_steps == 0) ||
      (options_.every > absl::ZeroDuration() &&
       clock_.Now() - last_save_ >= options_.every);
  votes.checkpoint = is_last || (is_free && is_due);
}

void Checkpointer::OnCommit(const StepResult& result) {
  if (!pending_.has_value()) return;
  const int64_t step_count = pending_->step_count;
  if (result.failed_step_count >= step_count) {
    if (options_.rank == 0) {
      Post([this, step_count] { Remove(StagingOf(step_count)); });
    }
    pending_.reset();
  } else if (result.written_step_count >= step_count) {
    if (options_.rank == 0) {
      Post([this, info = *pending_] { Commit(info); });
    } else {
      MutexLock lock(&mutex_);
      complete_ = step_count;
    }
    pending_.reset();
  }
}

absl::Status Checkpointer::Settle(
    const std::function<absl::Status(int64_t* words, int64_t count)>&
        max_over_ranks,
    const std::function<absl::Status()>& on_progress) {
  int64_t seen_progress = -1;
  for (bool settled = false; !settled;) {
    int64_t words[3];  // -written, failed, whether something is under way.
    bool goes_on = false;
    {
      MutexLock lock(&mutex_);
      if (is_busy()) changed_.WaitFor(&mutex_, absl::Seconds(1));
      goes_on = !is_busy() || progress_ != seen_progress;
      seen_progress = progress_;
      words[0] = -written_;
      words[1] = failed_;
      words[2] = is_busy() || pending_.has_value();
    }
    if (goes_on) RETURN_IF_ERROR(on_progress());
    RETURN_IF_ERROR(max_over_ranks(words, std::size(words)));
    StepResult agreed;
    agreed.written_step_count = -words[0];
    agreed.failed_step_count = words[1];
    OnCommit(agreed);
    settled = words[2] == 0;
  }
  return absl::OkStatus();
}

std::array<float*, kStateKindCount> Checkpointer::Snapshot() {
  std::array<float*, kStateKindCount> memory;
  for (int kind = 0; kind < kStateKindCount; ++kind) {
    memory[kind] = snapshot_[kind].data();
  }
  return memory;
}

void Checkpointer::Save(CheckpointInfo info) {
  LS_CHECK(!pending_.has_value());
  last_save_ = clock_.Now();
  pending_ = info;
  Post([this, info = std::move(info)] { WritePart(info); });
}

int64_t Checkpointer::complete_step_count() const {
  MutexLock lock(&mutex_);
  return complete_;
}

std::optional<std::string> Checkpointer::TakeFailure() {
  MutexLock lock(&mutex_);
  return std::exchange(failure_, std::nullopt);
}

std::string Checkpointer::StagingOf(int64_t step_count) const {
  return absl::StrCat(options_.staging_folder, "/", CheckpointName(step_count));
}

void Checkpointer::Post(std::function<void()> task) {
  MutexLock lock(&mutex_);
  tasks_.push_back(std::move(task));
  changed_.SignalAll();
}

void Checkpointer::RunTasks() {
  for (;;) {
    std::function<void()> task;
    {
      MutexLock lock(&mutex_);
      running_ = false;
      changed_.SignalAll();
      while (tasks_.empty() && !stopping_) changed_.Wait(&mutex_);
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
      running_ = true;
    }
    task();
  }
}

absl::Status Checkpointer::CountProgress() {
  MutexLock lock(&mutex_);
  ++progress_;
  return stopping_ ? absl::CancelledError("ending") : absl::OkStatus();
}

void Checkpointer::WritePart(const CheckpointInfo& info) {
  const std::string folder = StagingOf(info.step_count);
  std::vector<CheckpointPiece> pieces;
  for (const TensorPiece& p : owned_.pieces) {
    CheckpointPiece& piece = pieces.emplace_back();
    piece.tensor = p.tensor;
    piece.begin = p.range.offset - layout_.tensors[p.tensor].offset;
    piece.element_count = p.range.element_count;
    for (int kind = 0; kind < kStateKindCount; ++kind) {
      piece.values[kind] = snapshot_[kind].data() + p.owned_offset;
    }
  }
  absl::Status status = MakeFolder(folder);
  if (status.ok()) {
    status = WriteCheckpointPart(folder, options_.rank, options_.world, layout_,
                                 pieces, [this] { return CountProgress(); });
  }
  MutexLock lock(&mutex_);
  if (status.ok()) {
    written_ = info.step_count;
  } else {
    failed_ = info.step_count;
    failure_ = absl::StrCat("checkpoint of ", info.step_count,
                            " steps: ", status.message());
  }
}

void Checkpointer::Commit(const CheckpointInfo& info) {
  const absl::Status status = TryToCommit(info);
  Remove(StagingOf(info.step_count));
  {
    MutexLock lock(&mutex_);
    if (status.ok()) {
      complete_ = info.step_count;
    } else {
      failure_ = absl::StrCat("checkpoint of ", info.step_count,
                              " steps: ", status.message());
    }
  }
  if (status.ok()) RemoveOld(info.step_count);
}

absl::Status Checkpointer::TryToCommit(const CheckpointInfo& info) {
  RETURN_IF_ERROR(MakeFolder(options_.checkpoints_folder));
  const std::string final_path = absl::StrCat(options_.checkpoints_folder, "/",
                                              CheckpointName(info.step_count));
  std::error_code error;
  if (fs::exists(fs::symlink_status(final_path, error))) {
    const absl::StatusOr<Checkpoint> there = Checkpoint::Open(final_path);
    // An earlier generation's, with the same bits.
    const CheckpointOwner owner = {info.job, info.spec_digest};
    if (there.ok() && owner.Owns(there->info()) &&
        there->Verify([this] { return CountProgress(); }).ok()) {
      return absl::OkStatus();
    }
    // Torn, or it would have been gone on from.
    const std::string aside = absl::StrCat(StagingOf(info.step_count), "-torn");
    RETURN_IF_ERROR(PublishFolder(final_path, aside));
    Remove(aside);
  }
  return CommitCheckpoint(StagingOf(info.step_count), info, options_.world,
                          final_path);
}

void Checkpointer::RemoveOld(int64_t newest) {
  const auto step_counts = ListCheckpoints(options_.checkpoints_folder);
  if (!step_counts.ok()) return;
  int complete = 0;
  for (const int64_t step_count : *step_counts) {
    if (step_count > newest) continue;
    const std::string path = absl::StrCat(options_.checkpoints_folder, "/",
                                          CheckpointName(step_count));
    if (!Checkpoint::Open(path).ok() || ++complete <= options_.keep) continue;
    // Out of the way first: what is half removed must not be met there.
    const std::string aside = absl::StrCat(StagingOf(step_count), "-old");
    if (PublishFolder(path, aside).ok()) Remove(aside);
  }
}

absl::StatusOr<std::optional<Checkpoint>> FindNewestCheckpoint(
    const std::string& folder, const CheckpointOwner& owner, bool verify,
    const std::function<absl::Status()>& on_progress,
    const std::function<void(const absl::Status&)>& on_passed_over) {
  ASSIGN_OR_RETURN(const std::vector<int64_t> step_counts,
                   ListCheckpoints(folder));
  for (const int64_t step_count : step_counts) {
    const std::string path =
        absl::StrCat(folder, "/", CheckpointName(step_count));
    absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(path);
    absl::Status status = checkpoint.status();
    if (status.ok() && verify) status = checkpoint->Verify(on_progress);
    if (status.ok()) {
      // A foreign manifest over other parts does not come here with `verify`.
      if (!owner.Owns(checkpoint->info())) {
        return absl::FailedPreconditionError(absl::StrCat(
            path, " is of jobs/", checkpoint->info().job,
            " and not of this job, jobs/", owner.job,
            ", nor of the same spec; choose another output_directory, or move "
            "it away"));
      }
      return std::optional<Checkpoint>(*std::move(checkpoint));
    }
    RETURN_IF_ERROR(on_progress());
    on_passed_over(status);
  }
  return std::optional<Checkpoint>();
}

}  // namespace lockstep
