#include "worker/comm/loopback_communicator.h"

#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/collective_bytes.h"
#include "common/layout.h"
#include "common/mutex.h"
#include "common/status.h"
#include "worker/comm/elementwise.h"

namespace lockstep {
namespace {

// What a rank asks for, and where its memory is.
struct Call {
  const char* name = "";
  int64_t n = 0;
  int64_t argument = 0;  // Element size or root.
  void* data = nullptr;

  bool SameAs(const Call& other) const {
    return std::strcmp(name, other.name) == 0 && n == other.n &&
           argument == other.argument;
  }
  std::string ToString() const {
    return absl::StrCat(name, "(n=", n, ", argument=", argument, ")");
  }
};

// What follows a meeting: work on the others' memory, or the caller's return.
enum class Then { kWork, kReturn };

// Where the ranks of a group meet.  Thread-safe.
class Group {
 public:
  explicit Group(int world) : world_(world), calls_(world), failures_(world) {}

  int world() const { return world_; }

  // The first meeting of a collective: once it returns, every rank's call can
  // be read until the last meeting.
  absl::Status Begin(int rank, const Call& call, Then then) {
    MutexLock lock(&mutex_);
    RETURN_IF_ERROR(failures_[rank]);
    calls_[rank] = call;
    return MeetLocked(rank, /*first=*/true, then);
  }

  // A further meeting, after work.
  absl::Status Meet(int rank, Then then) {
    MutexLock lock(&mutex_);
    --working_;
    changed_.SignalAll();
    return MeetLocked(rank, /*first=*/false, then);
  }

  // Valid between meetings of a collective.
  template <typename T>
  T* DataOf(int rank) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return static_cast<T*>(calls_[rank].data);
  }

  // Fails rank `rank` with `own` and the others with `others`.
  void Fail(int rank, const absl::Status& own, const absl::Status& others) {
    MutexLock lock(&mutex_);
    FailLocked(rank, own, others);
  }

 private:
  absl::Status MeetLocked(int rank, bool first, Then then)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (failures_[rank].ok()) {
      const int64_t meeting = meeting_;
      if (++arrived_ == world_) {
        if (first) CheckCallsLocked();
        arrived_ = 0;
        ++meeting_;
        if (then == Then::kWork && failures_[rank].ok()) working_ = world_;
        changed_.SignalAll();
      }
      while (meeting_ == meeting && failures_[rank].ok()) {
        changed_.Wait(&mutex_);
      }
      // A meeting that took place counts, whatever failed since: the others
      // may be at work on this rank's memory.
      if (meeting_ != meeting && !mismatch_) return absl::OkStatus();
    }
    // The caller may free its memory: not before the others have left it.
    while (working_ > 0) changed_.Wait(&mutex_);
    return failures_[rank];
  }

  void CheckCallsLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (int r = 1; r < world_; ++r) {
      if (calls_[r].SameAs(calls_[0])) continue;
      mismatch_ = true;
      const absl::Status status = absl::InternalError(absl::StrCat(
          "ranks make different calls: rank 0 ", calls_[0].ToString(),
          ", rank ", r, " ", calls_[r].ToString()));
      FailLocked(0, status, status);
      return;
    }
  }

  void FailLocked(int rank, const absl::Status& own, const absl::Status& others)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (int r = 0; r < world_; ++r) {
      if (failures_[r].ok()) failures_[r] = r == rank ? own : others;
    }
    changed_.SignalAll();
  }

  const int world_;
  Mutex mutex_;
  CondVar changed_;
  int64_t meeting_ ABSL_GUARDED_BY(mutex_) = 0;  // Meetings that took place.
  int arrived_ ABSL_GUARDED_BY(mutex_) = 0;      // 0 <= arrived < world.
  int working_ ABSL_GUARDED_BY(mutex_) = 0;  // Ranks reading others' memory.
  bool mismatch_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Call> calls_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::Status> failures_ ABSL_GUARDED_BY(mutex_);
};

class LoopbackCommunicator final : public Communicator {
 public:
  LoopbackCommunicator(std::shared_ptr<Group> group, int rank)
      : group_(std::move(group)), rank_(rank) {}

  ~LoopbackCommunicator() override {
    const absl::Status left = absl::UnavailableError(
        absl::StrCat("rank ", rank_, " has left the communicator"));
    group_->Fail(rank_, left, left);
  }

  int rank() const override { return rank_; }
  int world() const override { return group_->world(); }

  absl::Status AllReduceSum(int64_t* data, int64_t n) override {
    return AllReduce("AllReduceSum", Reduction::kSum, data, n);
  }

  absl::Status AllReduceMax(int64_t* data, int64_t n) override {
    return AllReduce("AllReduceMax", Reduction::kMax, data, n);
  }

  absl::Status ReduceScatterSum(int64_t* data, int64_t n,
                                int64_t part) override {
    LS_CHECK(part * world() >= n);
    RETURN_IF_ERROR(group_->Begin(
        rank_,
        {.name = "ReduceScatterSum", .n = n, .argument = part, .data = data},
        Then::kWork));
    ReduceMine(Reduction::kSum, data, n, part);
    sent_bytes_ += ReduceScatterBytes(n, part, rank_, world());
    return group_->Meet(rank_, Then::kReturn);
  }

  absl::Status AllGather(void* data, int64_t n,
                         int64_t element_bytes) override {
    RETURN_IF_ERROR(group_->Begin(
        rank_,
        {.name = "AllGather", .n = n, .argument = element_bytes, .data = data},
        Then::kWork));
    Gather(data, n, element_bytes);
    sent_bytes_ += AllGatherBytes(n, element_bytes, rank_, world());
    return group_->Meet(rank_, Then::kReturn);
  }

  absl::Status Broadcast(void* data, int64_t bytes, int root) override {
    LS_CHECK(0 <= root && root < world());
    RETURN_IF_ERROR(group_->Begin(
        rank_,
        {.name = "Broadcast", .n = bytes, .argument = root, .data = data},
        Then::kWork));
    if (rank_ == root) {
      sent_bytes_ += bytes * (world() - 1);
    } else if (bytes > 0) {
      std::memcpy(data, group_->DataOf<char>(root), bytes);
    }
    return group_->Meet(rank_, Then::kReturn);
  }

  absl::Status Barrier() override {
    return group_->Begin(rank_, {.name = "Barrier"}, Then::kReturn);
  }

  void Abort(absl::Status why) override {
    LS_CHECK(!why.ok());
    group_->Fail(rank_, why,
                 absl::AbortedError(absl::StrCat("rank ", rank_,
                                                 " aborted: ", why.message())));
  }

  std::optional<int> failed_peer() const override { return std::nullopt; }
  int64_t sent_bytes() const override { return sent_bytes_; }

 private:
  absl::Status AllReduce(const char* name, Reduction reduction, int64_t* data,
                         int64_t n) {
    RETURN_IF_ERROR(group_->Begin(rank_, {.name = name, .n = n, .data = data},
                                  Then::kWork));
    ReduceMine(reduction, data, n, ShardSize(n, world()));
    RETURN_IF_ERROR(group_->Meet(rank_, Then::kWork));
    Gather(data, n, sizeof(int64_t));
    // As processes would.
    sent_bytes_ += AllReduceBytes(n, rank_, world());
    return group_->Meet(rank_, Then::kReturn);
  }

  // The others read the rest of `data` meanwhile, and never this part.
  void ReduceMine(Reduction reduction, int64_t* data, int64_t n, int64_t part) {
    const FlatRange mine = PartOf({0, n}, part, rank_);
    for (int r = 0; r < world(); ++r) {
      if (r == rank_) continue;
      ReduceInto(reduction, data + mine.offset,
                 group_->DataOf<int64_t>(r) + mine.offset, mine.element_count);
    }
  }

  void Gather(void* data, int64_t n, int64_t element_bytes) {
    for (int r = 0; r < world(); ++r) {
      if (r == rank_) continue;
      const FlatRange shard = ShardOf({0, n}, r, world());
      if (shard.element_count > 0) {
        const int64_t begin = shard.offset * element_bytes;
        std::memcpy(static_cast<char*>(data) + begin,
                    group_->DataOf<char>(r) + begin,
                    shard.element_count * element_bytes);
      }
    }
  }

  const std::shared_ptr<Group> group_;
  const int rank_;
  std::atomic<int64_t> sent_bytes_ = 0;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> MakeLoopbackGroup(int world) {
  LS_CHECK(world >= 1);
  auto group = std::make_shared<Group>(world);
  std::vector<std::unique_ptr<Communicator>> ends;
  for (int rank = 0; rank < world; ++rank) {
    ends.push_back(std::make_unique<LoopbackCommunicator>(group, rank));
  }
  return ends;
}

}  // namespace lockstep
