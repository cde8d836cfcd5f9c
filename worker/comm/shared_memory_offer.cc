#include "worker/comm/shared_memory_offer.h"

#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/check.h"
#include "common/status.h"

namespace lockstep {
namespace {

constexpr uint32_t kHelloMagic = 0x4d53534c;  // "LSSM"
constexpr uint32_t kHelloVersion = 1;

constexpr int kNonceBytes = 16;
constexpr absl::string_view kNamePrefix = "lockstep-";
constexpr size_t kNameBytes = kNamePrefix.size() + 2 * kNonceBytes;

// Of connections by who is no rank, beyond those of ranks.
constexpr int kStrangersMax = 64;

std::string SystemText(absl::string_view call) {
  return absl::StrCat(call, ": ", std::strerror(errno));
}

// Secrets, which no seed may give again.
absl::StatusOr<std::string> RandomBytes() {
  std::string bytes(kNonceBytes, '\0');
  if (getrandom(bytes.data(), bytes.size(), 0) !=
      static_cast<ssize_t>(bytes.size())) {
    return absl::UnavailableError(SystemText("getrandom"));
  }
  return bytes;
}

// A name in no file system: a zero byte and `name`.
socklen_t AbstractAddress(absl::string_view name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return offsetof(sockaddr_un, sun_path) + 1 + name.size();
}

// What is wrong with the user at the other end; empty if it is this one.
std::string WrongUser(int socket) {
  ucred peer;
  socklen_t size = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return SystemText("SO_PEERCRED");
  }
  if (peer.uid == geteuid()) return "";
  return absl::StrCat("it runs as another user, uid ", peer.uid, ", not ",
                      geteuid());
}

absl::Status NotShared(int peer, absl::string_view why) {
  return absl::UnavailableError(absl::StrCat(
      "rank ", peer, " is not reachable through shared memory: ", why));
}

// For sendmsg and recvmsg: `size` bytes at `data`, with room for one descriptor
// beside them.
struct DescriptorMessage {
  DescriptorMessage(void* data, size_t size) : part{data, size} {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = room;
    header.msg_controllen = sizeof(room);
  }
  DescriptorMessage(const DescriptorMessage&) = delete;
  DescriptorMessage& operator=(const DescriptorMessage&) = delete;

  iovec part;
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr header = {};
};

}  // namespace

struct SharedMemoryOffer::Hello {
  uint32_t magic = kHelloMagic;
  uint32_t version = kHelloVersion;
  int32_t rank = 0;
  int32_t world = 0;
  char nonce[kNonceBytes] = {};  // Of the offer that this answers.
  uint64_t proof = 0;            // What the segment beside this begins with.
};

absl::StatusOr<std::unique_ptr<SharedMemoryOffer>> SharedMemoryOffer::Make(
    const Options& options) {
  LS_CHECK(0 <= options.rank && options.rank < options.world);
  std::unique_ptr<SharedMemoryOffer> offer(new SharedMemoryOffer(options));
  RETURN_IF_ERROR(offer->Open());
  return offer;
}

SharedMemoryOffer::SharedMemoryOffer(const Options& options)
    : options_(options) {
  shared_.segments.resize(options.world);
  shared_.theirs.resize(options.world);
  shared_.mine.resize(options.world);
}

absl::Status SharedMemoryOffer::Open() {
  ASSIGN_OR_RETURN(SharedSegment segment,
                   SharedSegment::Create(options_.segment_bytes));
  ASSIGN_OR_RETURN(const std::string name, RandomBytes());
  ASSIGN_OR_RETURN(const std::string nonce, RandomBytes());
  ASSIGN_OR_RETURN(const std::string proof, RandomBytes());
  std::memcpy(&proof_, proof.data(), sizeof(proof_));
  std::memcpy(segment.data(), &proof_, sizeof(proof_));
  shared_.segments[options_.rank] = std::move(segment);

  bytes_ = absl::StrCat(kNamePrefix, absl::BytesToHexString(name), nonce);
  listener_ = UniqueFd(
      socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address;
  const socklen_t size =
      AbstractAddress(absl::string_view(bytes_).substr(0, kNameBytes), address);
  if (!listener_.has_value() ||
      bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(listener_.get(), options_.world + kStrangersMax) != 0) {
    return absl::UnavailableError(SystemText("an abstract Unix socket"));
  }
  return absl::OkStatus();
}

absl::Status SharedMemoryOffer::Reach(const std::vector<std::string>& offers) {
  LS_CHECK(static_cast<int>(offers.size()) == options_.world);
  for (int peer = 0; peer < options_.world; ++peer) {
    if (peer == options_.rank) continue;
    RETURN_IF_ERROR(ReachOne(peer, offers[peer]));
  }
  return absl::OkStatus();
}

absl::Status SharedMemoryOffer::ReachOne(int peer, const std::string& offer) {
  if (offer.size() != kNameBytes + kNonceBytes) {
    return NotShared(peer, "it offers none");
  }
  UniqueFd connection(
      socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address;
  const socklen_t size =
      AbstractAddress(absl::string_view(offer).substr(0, kNameBytes), address);
  if (!connection.has_value() ||
      connect(connection.get(), reinterpret_cast<sockaddr*>(&address), size) !=
          0) {
    return NotShared(peer, errno == ECONNREFUSED
                               ? "its socket is not here (another host, or "
                                 "another network namespace)"
                               : SystemText("connecting to its socket"));
  }
  if (const std::string wrong = WrongUser(connection.get()); !wrong.empty()) {
    return NotShared(peer, wrong);
  }

  Hello hello;
  hello.rank = options_.rank;
  hello.world = options_.world;
  std::memcpy(hello.nonce, offer.data() + kNameBytes, kNonceBytes);
  hello.proof = proof_;
  DescriptorMessage message(&hello, sizeof(hello));
  cmsghdr* const beside = CMSG_FIRSTHDR(&message.header);
  beside->cmsg_level = SOL_SOCKET;
  beside->cmsg_type = SCM_RIGHTS;
  beside->cmsg_len = CMSG_LEN(sizeof(int));
  const int segment = shared_.segments[options_.rank].fd();
  std::memcpy(CMSG_DATA(beside), &segment, sizeof(segment));
  if (sendmsg(connection.get(), &message.header, MSG_NOSIGNAL) !=
      static_cast<ssize_t>(sizeof(hello))) {
    return NotShared(peer, SystemText("passing it this rank's memory"));
  }
  shared_.mine[peer] = std::move(connection);
  return absl::OkStatus();
}

absl::Status SharedMemoryOffer::Collect() {
  std::vector<std::string> why(
      options_.world, "it has not come to this rank's socket with its nonce");
  // Whoever comes without being a rank is turned away.
  absl::Status turned_away;
  for (int i = 0; i < options_.world + kStrangersMax; ++i) {
    UniqueFd connection(accept4(listener_.get(), nullptr, nullptr,
                                SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!connection.has_value()) break;
    const absl::Status status = TakeOne(std::move(connection), why);
    if (!status.ok()) turned_away = status;
  }
  listener_.Close();
  for (int peer = 0; peer < options_.world; ++peer) {
    if (shared_.segments[peer].data() != nullptr) continue;
    if (!turned_away.ok()) {
      absl::StrAppend(&why[peer],
                      "; turned away was one: ", turned_away.message());
    }
    return NotShared(peer, why[peer]);
  }
  return absl::OkStatus();
}

// Errors: it is no rank's; what happened to a rank's goes to why[rank].
absl::Status SharedMemoryOffer::TakeOne(UniqueFd connection,
                                        std::vector<std::string>& why) {
  if (const std::string wrong = WrongUser(connection.get()); !wrong.empty()) {
    return absl::PermissionDeniedError(wrong);
  }
  Hello hello;
  DescriptorMessage message(&hello, sizeof(hello));
  const ssize_t size = recvmsg(connection.get(), &message.header,
                               MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  UniqueFd segment;
  const cmsghdr* beside = size < 0 ? nullptr : CMSG_FIRSTHDR(&message.header);
  if (beside != nullptr && beside->cmsg_level == SOL_SOCKET &&
      beside->cmsg_type == SCM_RIGHTS &&
      beside->cmsg_len == CMSG_LEN(sizeof(int))) {
    int fd;
    std::memcpy(&fd, CMSG_DATA(beside), sizeof(fd));
    segment = UniqueFd(fd);
  }
  if (size != static_cast<ssize_t>(sizeof(hello)) ||
      hello.magic != kHelloMagic || hello.version != kHelloVersion) {
    return absl::InvalidArgumentError("it speaks another protocol");
  }
  if (std::memcmp(hello.nonce, bytes_.data() + kNameBytes, kNonceBytes) != 0) {
    return absl::PermissionDeniedError("it does not know the nonce");
  }
  if (hello.world != options_.world || hello.rank < 0 ||
      hello.rank >= options_.world || hello.rank == options_.rank ||
      shared_.theirs[hello.rank].has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("it says to be rank ", hello.rank, " of ", hello.world));
  }
  if (!segment.has_value()) {
    why[hello.rank] = "its memory was not passed along";
    return absl::OkStatus();
  }
  absl::StatusOr<SharedSegment> mapped = SharedSegment::Map(
      std::move(segment), options_.segment_bytes, options_.writable_bytes);
  if (!mapped.ok()) {
    why[hello.rank] = std::string(mapped.status().message());
    return absl::OkStatus();
  }
  if (std::memcmp(mapped->data(), &hello.proof, sizeof(hello.proof)) != 0) {
    why[hello.rank] = "what is in its memory is not what it says";
    return absl::OkStatus();
  }
  shared_.segments[hello.rank] = *std::move(mapped);
  shared_.theirs[hello.rank] = std::move(connection);
  return absl::OkStatus();
}

SharedMemory SharedMemoryOffer::Take() { return std::move(shared_); }

}  // namespace lockstep
