#include "worker/comm/group_listener.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status.h"
#include "worker/comm/gloo_communicator.h"
#include "worker/comm/shared_memory_communicator.h"

namespace lockstep {
namespace {

// Of the two times that ranks agree, and of the end when they do not.
constexpr uint64_t kReachedSlot = kFreeSlotMin;
constexpr uint64_t kMappedSlot = kFreeSlotMin + 1;
constexpr uint64_t kRefusedSlot = kFreeSlotMin + 2;

// Tells all ranks the own one of `all`, whose other entries become theirs.
template <typename T>
absl::Status Exchange(GlooTransport& transport, uint64_t slot,
                      std::vector<T>& all) {
  T* const own = &all[transport.rank()];
  std::vector<std::unique_ptr<GlooTransport::Transfers>> transfers;
  for (int peer = 0; peer < transport.world(); ++peer) {
    if (peer == transport.rank()) continue;
    transfers.push_back(transport.Receive(peer, slot, &all[peer], sizeof(T)));
    RETURN_IF_ERROR(transfers.back()->Post(0, sizeof(T)));
    transfers.push_back(transport.Send(peer, slot, own, sizeof(T)));
    RETURN_IF_ERROR(transfers.back()->Post(0, sizeof(T)));
  }
  for (const auto& t : transfers) RETURN_IF_ERROR(t->WaitAll());
  return absl::OkStatus();
}

// An address as it travels: the length of the transport's, that, the offer.
std::string Join(const std::string& tcp, const std::string& offer) {
  const auto size = static_cast<uint16_t>(tcp.size());
  LS_CHECK(size == tcp.size());
  const std::string head = {static_cast<char>(size >> 8),
                            static_cast<char>(size)};
  return absl::StrCat(head, tcp, offer);
}

struct Address {
  // Whatever else arrives is a transport's address that no rank has.
  explicit Address(absl::string_view joined) {
    if (joined.size() < 2) return;
    const size_t size =
        static_cast<uint8_t>(joined[0]) * 256 + static_cast<uint8_t>(joined[1]);
    joined.remove_prefix(2);
    tcp = std::string(joined.substr(0, size));
    joined.remove_prefix(std::min(size, joined.size()));
    offer = std::string(joined);
  }
  std::string tcp;
  std::string offer;
};

}  // namespace

// What a rank tells the others.
struct GroupListener::Vote {
  int32_t shares = 0;
  int32_t offers = 0;
  int32_t insists = 0;
  char why[244] = "";  // It does not share.
};

absl::StatusOr<std::unique_ptr<GroupListener>> GroupListener::Listen(
    int rank, int world, const GroupOptions& options, Clock& clock) {
  ASSIGN_OR_RETURN(std::shared_ptr<GlooTransport> transport,
                   GlooTransport::Listen(rank, world, options.tcp, clock));
  std::unique_ptr<GroupListener> listener(
      new GroupListener(options.collectives, transport));
  if (options.collectives == Collectives::kTcp) {
    listener->shared_memory_ =
        absl::CancelledError("it is told to use TCP (--collectives tcp)");
  } else if (world > kSharedMemoryWorldMax) {
    listener->shared_memory_ = absl::OutOfRangeError(
        absl::StrCat("more than ", kSharedMemoryWorldMax, " ranks"));
  } else {
    auto offer = SharedMemoryOffer::Make(SharedMemoryOptions(rank, world));
    listener->shared_memory_ = offer.status();
    if (offer.ok()) listener->offer_ = *std::move(offer);
  }
  for (int peer = 0; peer < world; ++peer) {
    if (peer == rank) continue;
    listener->addresses_[peer] =
        Join(transport->addresses()[peer],
             listener->offer_ == nullptr ? "" : listener->offer_->bytes());
  }
  return listener;
}

GroupListener::GroupListener(Collectives collectives,
                             std::shared_ptr<GlooTransport> transport)
    : collectives_(collectives),
      addresses_(transport->world()),
      owned_(transport),
      transport_(transport) {}

absl::StatusOr<std::unique_ptr<Communicator>> GroupListener::Connect(
    const std::vector<std::string>& peer_addresses, Instant deadline) {
  std::shared_ptr<GlooTransport> transport = transport_.lock();
  LS_CHECK(transport != nullptr);
  std::vector<std::string> tcp, offers;
  for (const std::string& joined : peer_addresses) {
    Address address(joined);
    tcp.push_back(std::move(address.tcp));
    offers.push_back(std::move(address.offer));
  }
  RETURN_IF_ERROR(transport->Connect(tcp, deadline));
  shared_memory_ = TryToShare(*transport, offers);
  if (absl::IsFailedPrecondition(shared_memory_)) {
    // A rank that died since it gave its vote shares nothing either: then that
    // is what failed.
    std::vector<char> alive(transport->world());
    RETURN_IF_ERROR(Exchange(*transport, kRefusedSlot, alive));
  }
  RETURN_IF_ERROR(transport->status());
  transport->EndConnecting();
  if (absl::IsFailedPrecondition(shared_memory_)) return shared_memory_;

  std::unique_ptr<Communicator> communicator =
      shared_memory_.ok()
          ? MakeSharedMemoryCommunicator(transport, offer_->Take())
          : MakeGlooCommunicator(transport);
  offer_ = nullptr;
  MutexLock lock(&mutex_);
  owned_.reset();
  return communicator;
}

// Every rank has sent all it has to say before it hears that all have reached
// each other, so that nothing needs to be waited for after that.
absl::Status GroupListener::TryToShare(GlooTransport& transport,
                                       const std::vector<std::string>& offers) {
  transport.SetActivity("agreeing on shared memory");
  absl::Status mine = shared_memory_;
  if (mine.ok()) mine = offer_->Reach(offers);
  RETURN_IF_ERROR(Agree(transport, kReachedSlot, mine));
  return Agree(transport, kMappedSlot, offer_->Collect());
}

// Tells all what this rank has found.
//
// Errors:
//   FailedPrecondition: some rank does not share, and one insists.
//   Unavailable: some rank does not share; or the transport failed.
absl::Status GroupListener::Agree(GlooTransport& transport, uint64_t slot,
                                  const absl::Status& mine) {
  std::vector<Vote> votes(transport.world());
  Vote& own = votes[transport.rank()];
  own.shares = mine.ok();
  own.offers = offer_ != nullptr;
  own.insists = collectives_ == Collectives::kSharedMemory;
  const std::string why(mine.message());
  std::memcpy(own.why, why.data(), std::min(why.size(), sizeof(own.why) - 1));
  RETURN_IF_ERROR(Exchange(transport, slot, votes));

  // Who has nothing to offer says more than who misses it.
  const auto first = [&votes](auto is) {
    return std::find_if(votes.begin(), votes.end(), is);
  };
  auto without = first([](const Vote& v) { return !v.shares && !v.offers; });
  if (without == votes.end()) {
    without = first([](const Vote& v) { return !v.shares; });
  }
  if (without == votes.end()) return absl::OkStatus();
  without->why[sizeof(without->why) - 1] = '\0';
  const std::string says =
      absl::StrCat("rank ", without - votes.begin(), ": ", without->why);
  const auto insists = first([](const Vote& v) { return v.insists; });
  if (insists == votes.end()) return absl::UnavailableError(says);
  return absl::FailedPreconditionError(
      absl::StrCat("rank ", insists - votes.begin(),
                   " is told to use shared memory and nothing else "
                   "(--collectives shared-memory), which not all ranks share: ",
                   says));
}

std::optional<int> GroupListener::failed_peer() const {
  const std::shared_ptr<GlooTransport> transport = transport_.lock();
  return transport == nullptr ? std::nullopt : transport->failed_peer();
}

void GroupListener::Abort(absl::Status why) {
  if (const auto transport = transport_.lock()) {
    transport->Fail(std::move(why), std::nullopt);
  }
}

}  // namespace lockstep
