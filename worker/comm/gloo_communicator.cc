#include "worker/comm/gloo_communicator.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/collective_bytes.h"
#include "common/layout.h"
#include "common/status.h"
#include "worker/comm/elementwise.h"

namespace lockstep {
namespace {

using Transfers = GlooTransport::Transfers;

// Of what is received before it is added: chunks that fit the cache, and enough
// of them that adding and receiving overlap.
constexpr int64_t kChunkElements = 32 << 10;
constexpr int kChunksInFlight = 4;

// Of what is received in place.  Each must arrive within the time-out.
constexpr int64_t kPieceBytes = 4 << 20;

int64_t ChunkCount(int64_t n, int64_t chunk) { return (n + chunk - 1) / chunk; }

// Posts [0, bytes) of the transfers' range in pieces.
absl::Status PostPieces(Transfers& transfers, int64_t bytes) {
  for (int64_t done = 0; done < bytes; done += kPieceBytes) {
    RETURN_IF_ERROR(transfers.Post(done, std::min(kPieceBytes, bytes - done)));
  }
  return absl::OkStatus();
}

class GlooCommunicator final : public Communicator {
 public:
  explicit GlooCommunicator(std::shared_ptr<GlooTransport> transport)
      : transport_(std::move(transport)) {}

  int rank() const override { return transport_->rank(); }
  int world() const override { return transport_->world(); }

  absl::Status AllReduceSum(int64_t* data, int64_t n) override {
    return Run("AllReduceSum", n, 0,
               [&] { return AllReduce(Reduction::kSum, data, n); });
  }

  absl::Status AllReduceMax(int64_t* data, int64_t n) override {
    return Run("AllReduceMax", n, 0,
               [&] { return AllReduce(Reduction::kMax, data, n); });
  }

  absl::Status ReduceScatterSum(int64_t* data, int64_t n,
                                int64_t part) override {
    LS_CHECK(part * world() >= n);
    return Run("ReduceScatterSum", n, part, [&] {
      return Reduce(Reduction::kSum, data, n, part, /*gather=*/false);
    });
  }

  absl::Status AllGather(void* data, int64_t n,
                         int64_t element_bytes) override {
    return Run("AllGather", n, element_bytes, [&] {
      return Gather(static_cast<char*>(data), n, element_bytes);
    });
  }

  absl::Status Broadcast(void* data, int64_t bytes, int root) override {
    LS_CHECK(0 <= root && root < world());
    return Run("Broadcast", bytes, root, [&] {
      return BroadcastFrom(root, static_cast<char*>(data), bytes);
    });
  }

  absl::Status Barrier() override {
    return Run("Barrier", 1, 0, [&] {
      int64_t token = 0;
      return AllReduceInOneRound(Reduction::kMax, &token, 1);
    });
  }

  void Abort(absl::Status why) override {
    transport_->Fail(std::move(why), std::nullopt);
  }

  std::optional<int> failed_peer() const override {
    return transport_->failed_peer();
  }

  int64_t sent_bytes() const override { return sent_bytes_; }

 private:
  // Runs one collective under a number of its own.
  template <typename Body>
  absl::Status Run(const char* name, int64_t n, int64_t argument, Body body) {
    LS_CHECK(n >= 0);
    RETURN_IF_ERROR(transport_->status());
    ++sequence_;
    // The call's kind and size are part of the slot, see the header.
    uint64_t mixed = sequence_ * 0x9E3779B97F4A7C15u;
    for (const char* c = name; *c != '\0'; ++c) mixed = mixed * 31 + *c;
    mixed = (mixed + n) * 0xD6E8FEB86659FD93u + argument;
    mixed ^= mixed >> 32;
    slot_ = sequence_ << 24 | (mixed & 0x3fffff) << 2;
    if (n == 0 || world() == 1) return absl::OkStatus();

    transport_->SetActivity(
        absl::StrCat(name, "(n=", n, "), collective ", sequence_));
    const absl::Status result = body();
    if (!result.ok()) return transport_->status();
    return absl::OkStatus();
  }

  uint64_t slot(int phase) const { return slot_ | phase; }

  absl::Status AllReduce(Reduction reduction, int64_t* data, int64_t n) {
    if (n * int64_t{sizeof(int64_t)} <= kOneRoundBytes) {
      return AllReduceInOneRound(reduction, data, n);
    }
    return Reduce(reduction, data, n, ShardSize(n, world()), /*gather=*/true);
  }

  absl::Status AllReduceInOneRound(Reduction reduction, int64_t* data,
                                   int64_t n) {
    const int64_t bytes = n * sizeof(int64_t);
    staging_.resize(std::max<size_t>(staging_.size(), n * (world() - 1)));
    std::vector<std::unique_ptr<Transfers>> transfers;
    const auto exchange = [&]() -> absl::Status {
      int64_t* to = staging_.data();
      for (int peer = 0; peer < world(); ++peer) {
        if (peer == rank()) continue;
        transfers.push_back(transport_->Receive(peer, slot(0), to, bytes));
        RETURN_IF_ERROR(transfers.back()->Post(0, bytes));
        to += n;
      }
      for (int peer = 0; peer < world(); ++peer) {
        if (peer == rank()) continue;
        transfers.push_back(transport_->Send(peer, slot(0), data, bytes));
        RETURN_IF_ERROR(transfers.back()->Post(0, bytes));
        sent_bytes_ += bytes;
      }
      for (const auto& t : transfers) RETURN_IF_ERROR(t->WaitAll());
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(exchange());
    for (int i = 0; i < world() - 1; ++i) {
      ReduceInto(reduction, data, staging_.data() + i * n, n);
    }
    return absl::OkStatus();
  }

  // Reduce-scatter; with `gather`, every chunk of the own part goes to all as
  // soon as it is reduced, so that both halves of an all-reduce overlap.
  //
  // Receiving a reduced chunk over what was to be sent is safe: its owner has
  // it only once it has received this rank's part of it.
  absl::Status Reduce(Reduction reduction, int64_t* data, int64_t n,
                      int64_t part, bool gather) {
    constexpr int64_t kBytes = sizeof(int64_t);
    const FlatRange mine = PartOf({0, n}, part, rank());
    const int64_t chunk_count = ChunkCount(mine.element_count, kChunkElements);
    constexpr int64_t kWindow = kChunksInFlight * kChunkElements;
    staging_.resize(std::max<size_t>(staging_.size(), kWindow * (world() - 1)));

    struct Peer {
      int64_t* staging;
      std::unique_ptr<Transfers> parts_in, parts_out, sums_in, sums_out;
    };
    std::vector<Peer> peers;
    const auto post_chunk = [&](Transfers& to, int64_t count, int64_t chunk,
                                int64_t at_element) {
      const int64_t elements =
          std::min(kChunkElements, count - chunk * kChunkElements);
      return to.Post(at_element * kBytes, elements * kBytes);
    };
    const auto exchange = [&]() -> absl::Status {
      for (int r = 0; r < world(); ++r) {
        if (r == rank()) continue;
        const FlatRange theirs = PartOf({0, n}, part, r);
        const int64_t their_bytes = theirs.element_count * kBytes;
        const int64_t my_bytes = mine.element_count * kBytes;
        Peer& p = peers.emplace_back();
        p.staging = staging_.data() + kWindow * (peers.size() - 1);
        p.parts_in =
            transport_->Receive(r, slot(0), p.staging, kWindow * kBytes);
        p.parts_out =
            transport_->Send(r, slot(0), data + theirs.offset, their_bytes);
        p.sums_in =
            transport_->Receive(r, slot(1), data + theirs.offset, their_bytes);
        p.sums_out = transport_->Send(r, slot(1), data + mine.offset, my_bytes);
        for (int64_t k = 0; k < std::min<int64_t>(kChunksInFlight, chunk_count);
             ++k) {
          RETURN_IF_ERROR(post_chunk(*p.parts_in, mine.element_count, k,
                                     k * kChunkElements));
        }
        for (int64_t k = 0;
             k < ChunkCount(theirs.element_count, kChunkElements); ++k) {
          RETURN_IF_ERROR(post_chunk(*p.parts_out, theirs.element_count, k,
                                     k * kChunkElements));
          if (!gather) continue;
          RETURN_IF_ERROR(post_chunk(*p.sums_in, theirs.element_count, k,
                                     k * kChunkElements));
        }
        sent_bytes_ += their_bytes + (gather ? my_bytes : 0);
      }
      for (int64_t k = 0; k < chunk_count; ++k) {
        const int64_t begin = k * kChunkElements;
        const int64_t elements =
            std::min(kChunkElements, mine.element_count - begin);
        const int64_t place = k % kChunksInFlight * kChunkElements;
        for (Peer& p : peers) {
          RETURN_IF_ERROR(p.parts_in->Wait());
          ReduceInto(reduction, data + mine.offset + begin, p.staging + place,
                     elements);
          if (k + kChunksInFlight < chunk_count) {
            RETURN_IF_ERROR(post_chunk(*p.parts_in, mine.element_count,
                                       k + kChunksInFlight, place));
          }
        }
        if (!gather) continue;
        for (Peer& p : peers) {
          RETURN_IF_ERROR(
              post_chunk(*p.sums_out, mine.element_count, k, begin));
        }
      }
      for (Peer& p : peers) {
        RETURN_IF_ERROR(p.sums_in->WaitAll());
        RETURN_IF_ERROR(p.parts_out->WaitAll());
        RETURN_IF_ERROR(p.sums_out->WaitAll());
      }
      return absl::OkStatus();
    };
    return exchange();
  }

  absl::Status Gather(char* data, int64_t n, int64_t element_bytes) {
    const FlatRange mine = ShardOf({0, n}, rank(), world());
    const int64_t my_bytes = mine.element_count * element_bytes;
    std::vector<std::unique_ptr<Transfers>> transfers;
    const auto exchange = [&]() -> absl::Status {
      for (int r = 0; r < world(); ++r) {
        if (r == rank()) continue;
        const FlatRange theirs = ShardOf({0, n}, r, world());
        const int64_t their_bytes = theirs.element_count * element_bytes;
        transfers.push_back(transport_->Receive(
            r, slot(0), data + theirs.offset * element_bytes, their_bytes));
        RETURN_IF_ERROR(PostPieces(*transfers.back(), their_bytes));
        transfers.push_back(transport_->Send(
            r, slot(0), data + mine.offset * element_bytes, my_bytes));
        RETURN_IF_ERROR(PostPieces(*transfers.back(), my_bytes));
        sent_bytes_ += my_bytes;
      }
      for (const auto& t : transfers) RETURN_IF_ERROR(t->WaitAll());
      return absl::OkStatus();
    };
    return exchange();
  }

  absl::Status BroadcastFrom(int root, char* data, int64_t bytes) {
    std::vector<std::unique_ptr<Transfers>> transfers;
    const auto exchange = [&]() -> absl::Status {
      for (int r = 0; r < world(); ++r) {
        if (r == rank() || (rank() != root && r != root)) continue;
        if (rank() == root) {
          transfers.push_back(transport_->Send(r, slot(0), data, bytes));
          sent_bytes_ += bytes;
        } else {
          transfers.push_back(transport_->Receive(r, slot(0), data, bytes));
        }
        RETURN_IF_ERROR(PostPieces(*transfers.back(), bytes));
      }
      for (const auto& t : transfers) RETURN_IF_ERROR(t->WaitAll());
      return absl::OkStatus();
    };
    return exchange();
  }

  const std::shared_ptr<GlooTransport> transport_;
  uint64_t sequence_ = 0;  // Of the collective under way, from 1.
  uint64_t slot_ = 0;
  std::vector<int64_t> staging_;
  std::atomic<int64_t> sent_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> MakeGlooCommunicator(
    std::shared_ptr<GlooTransport> transport) {
  return std::make_unique<GlooCommunicator>(std::move(transport));
}

}  // namespace lockstep
