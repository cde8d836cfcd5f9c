#include "worker/comm/shared_memory_communicator.h"

#include <poll.h>
#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/check.h"
#include "common/collective_bytes.h"
#include "common/layout.h"
#include "common/status.h"
#include "worker/comm/communicator.h"
#include "worker/comm/elementwise.h"
#include "worker/comm/futex.h"

namespace lockstep {
namespace {

// Of a rank's segment: blocks that are under way at once.  An all-reduce has
// three (one put, one summed, one taken), and one for ranks that are apart.
constexpr int kSlotCount = 4;

// Large enough that handing over a block costs little beside it, small enough
// that a block's part of the array is in the cache still when its sums come.
constexpr int64_t kSlotBytes = 512 << 10;
static_assert(kOneRoundBytes <= kSlotBytes);

// What is summed at once, so that it stays in the innermost cache.
constexpr int64_t kStripElements = 1024;

constexpr int64_t kLineBytes = 64;
constexpr int64_t kHeaderBytes = 4096;
constexpr int64_t kWord = sizeof(int64_t);

// About this long a wait is worth a processor.
constexpr int kSpinsMax = 300;

// How often a sleeper looks for who is gone.
constexpr absl::Duration kLookInterval = absl::Milliseconds(10);

enum class Kind : int64_t {
  kAllReduceSum,
  kAllReduceMax,
  kReduceScatterSum,
  kAllGather,
  kBroadcast,
  kBarrier,
};

const char* NameOf(Kind kind) {
  switch (kind) {
    case Kind::kAllReduceSum:
      return "AllReduceSum";
    case Kind::kAllReduceMax:
      return "AllReduceMax";
    case Kind::kReduceScatterSum:
      return "ReduceScatterSum";
    case Kind::kAllGather:
      return "AllGather";
    case Kind::kBroadcast:
      return "Broadcast";
    case Kind::kBarrier:
      return "Barrier";
  }
  return "an unknown call";
}

// What a rank does.
struct Call {
  uint64_t collective = 0;  // Its number, from 1.
  Kind kind = Kind::kBarrier;
  int64_t n = 0;
  int64_t argument = 0;  // Element size or root.

  friend bool operator==(const Call&, const Call&) = default;
  std::string ToString() const {
    return absl::StrCat(NameOf(kind), "(n=", n,
                        argument == 0 ? "" : absl::StrCat(", ", argument),
                        "), collective ", collective);
  }
};

// What a rank has done: each counts blocks.
enum Mark {
  kPut,     // Its part of them is in the slot.
  kSummed,  // And its slice, summed.
  kTaken,   // It reads nothing of them any more.
  kMarkCount,
};

static_assert(std::atomic<uint64_t>::is_always_lock_free);

struct alignas(kLineBytes) MarkLine {
  std::atomic<uint64_t> block_count;
};

// At the start of a segment, which is all zeros at first.
struct Header {
  uint64_t proof;  // The offer's.

  // Written by the owner.
  MarkLine marks[kMarkCount];

  // Written by the owner before the block is marked as put.
  struct alignas(kLineBytes) SlotLabel {
    uint64_t block;
    Call call;
  } labels[kSlotCount];

  // What the owner sleeps for, a WaitCode, or 0; whoever brings it about sets
  // it to 0, changes `bell` and wakes the owner.
  alignas(kLineBytes) std::atomic<uint32_t> awaited;
  std::atomic<uint32_t> bell;

  // Not 0 once the owner has failed.
  alignas(kLineBytes) std::atomic<uint32_t> failed;
};
static_assert(sizeof(Header) <= kHeaderBytes);

uint32_t WaitCode(int peer, Mark mark) { return 1 + peer * kMarkCount + mark; }

int ProcessorCount() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class SharedMemoryCommunicator final : public Communicator,
                                       private GlooTransport::Sleeper {
 public:
  SharedMemoryCommunicator(std::shared_ptr<GlooTransport> transport,
                           SharedMemory memory)
      : transport_(std::move(transport)),
        memory_(std::move(memory)),
        // Where ranks share processors, one that spins keeps another from what
        // it waits for.
        spins_(world() <= ProcessorCount() ? kSpinsMax : 0),
        seen_(world() * kMarkCount) {
    for (int r = 0; r < world(); ++r) {
      watched_.push_back({memory_.theirs[r].get(), POLLRDHUP, 0});
    }
  }

  int rank() const override { return transport_->rank(); }
  int world() const override { return transport_->world(); }

  absl::Status AllReduceSum(int64_t* data, int64_t n) override {
    return Run(Kind::kAllReduceSum, n, 0,
               [&] { return AllReduce(Reduction::kSum, data, n); });
  }

  absl::Status AllReduceMax(int64_t* data, int64_t n) override {
    return Run(Kind::kAllReduceMax, n, 0,
               [&] { return AllReduce(Reduction::kMax, data, n); });
  }

  absl::Status ReduceScatterSum(int64_t* data, int64_t n,
                                int64_t part) override {
    LS_CHECK(part * world() >= n);
    return Run(Kind::kReduceScatterSum, n, part, [&] {
      return Reduce(Reduction::kSum, data, n, part, /*gather=*/false);
    });
  }

  absl::Status AllGather(void* data, int64_t n,
                         int64_t element_bytes) override {
    return Run(Kind::kAllGather, n, element_bytes, [&] {
      return Gather(static_cast<char*>(data), n, element_bytes);
    });
  }

  absl::Status Broadcast(void* data, int64_t bytes, int root) override {
    LS_CHECK(0 <= root && root < world());
    return Run(Kind::kBroadcast, bytes, root, [&] {
      return BroadcastFrom(root, static_cast<char*>(data), bytes);
    });
  }

  absl::Status Barrier() override {
    return Run(Kind::kBarrier, 1, 0, [&] {
      int64_t token = 0;
      return AllReduceInOneRound(Reduction::kMax, &token, 1);
    });
  }

  void Abort(absl::Status why) override {
    transport_->Fail(std::move(why), std::nullopt);
    ShutDown();
  }

  std::optional<int> failed_peer() const override {
    return transport_->failed_peer();
  }

  int64_t sent_bytes() const override { return sent_bytes_; }

 private:
  template <typename Body>
  absl::Status Run(Kind kind, int64_t n, int64_t argument, Body body) {
    LS_CHECK(n >= 0);
    if (const absl::Status status = transport_->status(); !status.ok()) {
      ShutDown();
      return status;
    }
    call_ = {call_.collective + 1, kind, n, argument};
    if (n == 0 || world() == 1) return absl::OkStatus();

    transport_->SetActivity(absl::StrCat(NameOf(kind), "(n=", n,
                                         "), collective ", call_.collective));
    if (body().ok()) return absl::OkStatus();
    ShutDown();
    return transport_->status();
  }

  absl::Status AllReduce(Reduction reduction, int64_t* data, int64_t n) {
    if (n * kWord <= kOneRoundBytes) {
      return AllReduceInOneRound(reduction, data, n);
    }
    return Reduce(reduction, data, n, ShardSize(n, world()), /*gather=*/true);
  }

  absl::Status AllReduceInOneRound(Reduction reduction, int64_t* data,
                                   int64_t n) {
    RETURN_IF_ERROR(OpenSlot(block_));
    std::memcpy(Slot(rank(), block_), data, n * kWord);
    PublishPut(block_);
    sent_bytes_ += (world() - 1) * n * kWord;
    for (int r = 0; r < world(); ++r) {
      if (r == rank()) continue;
      RETURN_IF_ERROR(AwaitPut(r, block_));
      ReduceInto(reduction, data, Words(r, block_), n);
    }
    Publish(kTaken, block_);
    ++block_;
    return absl::OkStatus();
  }

  // part: what each rank sums.
  absl::Status Reduce(Reduction reduction, int64_t* data, int64_t n,
                      int64_t part, bool gather) {
    // The place of rank i's piece in a slot is i x piece; in the own, once
    // summed, are the sums.
    const int64_t piece =
        kSlotBytes / world() / kLineBytes * (kLineBytes / kWord);
    // A rank's part goes in pieces, the first of which is the longest.
    const int64_t count = (std::min(part, n) + piece - 1) / piece;
    const auto piece_of = [&](int r, int64_t i) {
      return PartOf(PartOf({0, n}, part, r), piece, i);
    };
    const uint64_t first = block_;
    block_ += count;
    const int64_t mine = PartOf({0, n}, part, rank()).element_count;
    sent_bytes_ += (n - mine + (gather ? (world() - 1) * mine : 0)) * kWord;

    for (int64_t i = 0; i < count + 2; ++i) {
      if (i < count) {
        RETURN_IF_ERROR(OpenSlot(first + i));
        for (int r = 0; r < world(); ++r) {
          if (r == rank()) continue;
          const FlatRange p = piece_of(r, i);
          CopyForOthers(Words(rank(), first + i) + r * piece, data + p.offset,
                        p.element_count * kWord);
        }
        PublishPut(first + i);
      }
      if (const int64_t j = i - 1; 0 <= j && j < count) {
        for (int r = 0; r < world(); ++r) {
          if (r != rank()) RETURN_IF_ERROR(AwaitPut(r, first + j));
        }
        const FlatRange p = piece_of(rank(), j);
        SumPiece(reduction, data + p.offset, p.element_count, first + j,
                 rank() * piece, gather);
        Publish(gather ? kSummed : kTaken, first + j);
      }
      if (const int64_t j = i - 2; gather && 0 <= j) {
        for (int k = 1; k < world(); ++k) {
          const int r = (rank() + k) % world();
          RETURN_IF_ERROR(Await(r, kSummed, first + j));
          const FlatRange p = piece_of(r, j);
          std::memcpy(data + p.offset, Words(r, first + j) + r * piece,
                      p.element_count * kWord);
        }
        Publish(kTaken, first + j);
      }
    }
    return absl::OkStatus();
  }

  // Adds to sums[0, n) what the others have put at `place`; with `put`, it goes
  // there in the own slot too.
  void SumPiece(Reduction reduction, int64_t* sums, int64_t n, uint64_t block,
                int64_t place, bool put) {
    for (int64_t at = 0; at < n; at += kStripElements) {
      const int64_t strip = std::min(kStripElements, n - at);
      for (int r = 0; r < world(); ++r) {
        if (r == rank()) continue;
        ReduceInto(reduction, sums + at, Words(r, block) + place + at, strip);
      }
      if (!put) continue;
      CopyForOthers(Words(rank(), block) + place + at, sums + at,
                    strip * kWord);
    }
  }

  absl::Status Gather(char* data, int64_t n, int64_t element_bytes) {
    // In bytes; slices end where elements do.
    const auto slice_of = [&](int r) {
      const FlatRange slice = ShardOf({0, n}, r, world());
      return FlatRange{slice.offset * element_bytes,
                       slice.element_count * element_bytes};
    };
    const auto piece_of = [&](int r, int64_t i) {
      return PartOf(slice_of(r), kSlotBytes, i);
    };
    const int64_t count =
        (slice_of(0).element_count + kSlotBytes - 1) / kSlotBytes;
    const uint64_t first = block_;
    block_ += count;
    sent_bytes_ += (world() - 1) * slice_of(rank()).element_count;

    for (int64_t i = 0; i < count + 1; ++i) {
      if (i < count) {
        RETURN_IF_ERROR(OpenSlot(first + i));
        const FlatRange p = piece_of(rank(), i);
        CopyForOthers(Slot(rank(), first + i), data + p.offset,
                      p.element_count);
        PublishPut(first + i);
      }
      if (i == 0) continue;
      for (int k = 1; k < world(); ++k) {
        const int r = (rank() + k) % world();
        RETURN_IF_ERROR(AwaitPut(r, first + i - 1));
        const FlatRange p = piece_of(r, i - 1);
        std::memcpy(data + p.offset, Slot(r, first + i - 1), p.element_count);
      }
      Publish(kTaken, first + i - 1);
    }
    return absl::OkStatus();
  }

  absl::Status BroadcastFrom(int root, char* data, int64_t bytes) {
    if (rank() == root) sent_bytes_ += (world() - 1) * bytes;
    for (int64_t begin = 0; begin < bytes; begin += kSlotBytes, ++block_) {
      const int64_t count = std::min(kSlotBytes, bytes - begin);
      if (rank() == root) {
        RETURN_IF_ERROR(OpenSlot(block_));
        CopyForOthers(Slot(root, block_), data + begin, count);
        PublishPut(block_);
        // That the others take it for what it is; else two ranks could each
        // believe to be the root.
        for (int r = 0; begin == 0 && r < world(); ++r) {
          if (r != root) RETURN_IF_ERROR(AwaitPut(r, block_));
        }
      } else {
        if (begin == 0) {
          RETURN_IF_ERROR(OpenSlot(block_));
          PublishPut(block_);
        }
        RETURN_IF_ERROR(AwaitPut(root, block_));
        std::memcpy(data + begin, Slot(root, block_), count);
      }
      Publish(kTaken, block_);
    }
    return absl::OkStatus();
  }

  Header& HeaderOf(int r) const {
    return *reinterpret_cast<Header*>(memory_.segments[r].data());
  }

  char* Slot(int of_rank, uint64_t block) const {
    return memory_.segments[of_rank].data() + kHeaderBytes +
           block % kSlotCount * kSlotBytes;
  }
  int64_t* Words(int of_rank, uint64_t block) const {
    return reinterpret_cast<int64_t*>(Slot(of_rank, block));
  }

  // Waits until nobody reads the block that was in the slot.
  absl::Status OpenSlot(uint64_t block) {
    RETURN_IF_ERROR(transport_->status());
    if (block < kSlotCount) return absl::OkStatus();
    for (int r = 0; r < world(); ++r) {
      if (r != rank()) RETURN_IF_ERROR(Await(r, kTaken, block - kSlotCount));
    }
    return absl::OkStatus();
  }

  void PublishPut(uint64_t block) {
    HeaderOf(rank()).labels[block % kSlotCount] = {block, call_};
    Publish(kPut, block);
  }

  absl::Status AwaitPut(int peer, uint64_t block) {
    RETURN_IF_ERROR(Await(peer, kPut, block));
    // It has given up on this call, and waits for nobody.
    if (HeaderOf(peer).failed != 0) {
      transport_->FailGone(peer, /*needed=*/true, "it has failed");
      return transport_->status();
    }
    // Its slot is not used again before this rank has marked it as taken.
    const Header::SlotLabel& label = HeaderOf(peer).labels[block % kSlotCount];
    if (label.block == block && label.call == call_) return absl::OkStatus();
    const absl::Status status = absl::InternalError(absl::StrCat(
        "ranks make different calls: rank ", rank(), " ", call_.ToString(),
        "; rank ", peer, " ", label.call.ToString()));
    transport_->Fail(status, std::nullopt);
    return status;
  }

  // Marks this block, and with it those before, and wakes who sleeps for it.
  //
  // Sequentially consistent, like what a sleeper does: either this sees who
  // sleeps, or that sees the mark before it sleeps.
  void Publish(Mark mark, uint64_t block) {
    HeaderOf(rank()).marks[mark].block_count = block + 1;
    for (int r = 0; r < world(); ++r) {
      if (r == rank()) continue;
      Header& header = HeaderOf(r);
      uint32_t code = WaitCode(rank(), mark);
      if (header.awaited == code &&
          header.awaited.compare_exchange_strong(code, 0)) {
        Ring(header);
      }
    }
  }

  static void Ring(Header& header) {
    ++header.bell;
    FutexWake(header.bell);
  }

  // Waits until `peer` has marked the block.
  absl::Status Await(int peer, Mark mark, uint64_t block) {
    uint64_t& seen = seen_[peer * kMarkCount + mark];
    if (seen > block) return absl::OkStatus();
    const MarkLine& line = HeaderOf(peer).marks[mark];
    for (int i = 0;; ++i) {
      seen = line.block_count.load(std::memory_order_acquire);
      if (seen > block) return absl::OkStatus();
      if (i == spins_) break;
      Pause();
    }
    RETURN_IF_ERROR(transport_->BeginWait(peer, *this));
    const absl::Status status = Sleep(peer, mark, block);
    transport_->EndWait();
    seen = line.block_count.load(std::memory_order_acquire);
    return status;
  }

  absl::Status Sleep(int peer, Mark mark, uint64_t block) {
    Header& own = HeaderOf(rank());
    const MarkLine& line = HeaderOf(peer).marks[mark];
    absl::Status status;
    for (;;) {
      const uint32_t bell = own.bell;
      own.awaited = WaitCode(peer, mark);
      if (line.block_count > block) break;
      status = transport_->status();
      if (!status.ok()) break;
      if (!FutexWait(own.bell, bell, kLookInterval)) {
        LookForGone(peer, mark, block);
      }
    }
    own.awaited = 0;
    return status;
  }

  // Of the transport, when it fails while this sleeps.
  void Wake() override { Ring(HeaderOf(rank())); }

  // Fails if a rank is gone that had not ended well, or that is `needed` for
  // this block.
  void LookForGone(int needed, Mark mark, uint64_t block) {
    if (poll(watched_.data(), watched_.size(), 0) <= 0) return;
    for (int r = 0; r < world(); ++r) {
      if (watched_[r].revents == 0) continue;
      // What it did is complete now.
      const bool misses =
          r == needed && HeaderOf(r).marks[mark].block_count <= block;
      if (r == needed && !misses) return;
      if (transport_->FailGone(r, misses, "it is gone")) return;
    }
  }

  // Tells the others that this rank is not to be waited for.  Thread-safe.
  void ShutDown() {
    HeaderOf(rank()).failed = 1;
    for (const UniqueFd& socket : memory_.mine) {
      if (socket.has_value()) shutdown(socket.get(), SHUT_RDWR);
    }
  }

  const std::shared_ptr<GlooTransport> transport_;
  const SharedMemory memory_;
  const int spins_;
  Call call_;           // Under way.
  uint64_t block_ = 0;  // The next one; alike on all ranks between calls.
  // What a rank's mark was when it was last looked at.
  std::vector<uint64_t> seen_;
  std::vector<pollfd> watched_;
  std::atomic<int64_t> sent_bytes_ = 0;
};

}  // namespace

SharedMemoryOffer::Options SharedMemoryOptions(int rank, int world) {
  LS_CHECK(world <= kSharedMemoryWorldMax);
  static_assert(kSlotBytes / kSharedMemoryWorldMax >= kLineBytes);
  return {.rank = rank,
          .world = world,
          .segment_bytes = kHeaderBytes + kSlotCount * kSlotBytes,
          .writable_bytes = kHeaderBytes};
}

std::unique_ptr<Communicator> MakeSharedMemoryCommunicator(
    std::shared_ptr<GlooTransport> transport, SharedMemory memory) {
  return std::make_unique<SharedMemoryCommunicator>(std::move(transport),
                                                    std::move(memory));
}

}  // namespace lockstep
