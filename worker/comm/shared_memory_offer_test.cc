#include "worker/comm/shared_memory_offer.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstring>
#include <functional>
#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using Offer = std::unique_ptr<SharedMemoryOffer>;

constexpr int64_t kBytes = 64 << 10;
constexpr int64_t kWritable = 4096;
constexpr size_t kNameBytes = 41;
constexpr size_t kOfferBytes = kNameBytes + 16;
constexpr uid_t kNobody = 65534;

Offer MustMake(int rank, int world = 2) {
  auto offer = SharedMemoryOffer::Make({.rank = rank,
                                        .world = world,
                                        .segment_bytes = kBytes,
                                        .writable_bytes = kWritable});
  EXPECT_TRUE(offer.ok()) << offer.status();
  return *std::move(offer);
}

std::string Text(const absl::Status& status) {
  return std::string(status.message());
}

bool HasEnded(const UniqueFd& socket) {
  pollfd p = {socket.get(), POLLRDHUP, 0};
  return poll(&p, 1, 0) == 1;
}

TEST(SharedMemoryOfferTest, RanksSeeEachOthersMemoryAndEnd) {
  Offer a = MustMake(0);
  Offer b = MustMake(1);
  ASSERT_EQ(a->bytes().size(), kOfferBytes);
  ASSERT_EQ(a->Reach({"", b->bytes()}), absl::OkStatus());
  ASSERT_EQ(b->Reach({a->bytes(), ""}), absl::OkStatus());
  ASSERT_EQ(a->Collect(), absl::OkStatus());
  ASSERT_EQ(b->Collect(), absl::OkStatus());
  const SharedMemory in_a = a->Take();
  std::optional<SharedMemory> in_b = b->Take();

  in_a.segments[0].data()[kBytes - 1] = 'a';
  in_b->segments[0].data()[kWritable - 1] = 'b';

  EXPECT_EQ(in_b->segments[0].data()[kBytes - 1], 'a');
  EXPECT_EQ(in_a.segments[0].data()[kWritable - 1], 'b');
  EXPECT_DEATH(in_b->segments[0].data()[kWritable] = 'b', "");
  EXPECT_FALSE(HasEnded(in_a.theirs[1]));
  in_b.reset();
  EXPECT_TRUE(HasEnded(in_a.theirs[1]));
}

TEST(SharedMemoryOfferTest, WhoDoesNotKnowTheNonceIsTurnedAway) {
  Offer a = MustMake(0);
  Offer b = MustMake(1);
  std::string wrong = b->bytes();
  wrong[kNameBytes] ^= 1;

  ASSERT_EQ(a->Reach({"", wrong}), absl::OkStatus());

  const absl::Status status = b->Collect();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Text(status), HasSubstr("rank 0 is not reachable"));
  EXPECT_THAT(Text(status), HasSubstr("does not know the nonce"));
}

TEST(SharedMemoryOfferTest, WhoOffersNothingIsNamed) {
  Offer a = MustMake(0, 3);
  Offer b = MustMake(1, 3);

  EXPECT_THAT(Text(a->Reach({"", b->bytes(), ""})),
              HasSubstr("rank 2 is not reachable through shared memory: it "
                        "offers none"));
}

// What a peer sends, and with it a descriptor if it has one.
struct Hello {
  uint32_t magic = 0x4d53534c;
  uint32_t version = 1;
  int32_t rank = 0;
  int32_t world = 2;
  char nonce[16] = {};
  uint64_t proof = 0;
};

UniqueFd SendByHand(const Offer& to, Hello hello, int descriptor) {
  std::memcpy(hello.nonce, to->bytes().data() + kNameBytes, 16);
  UniqueFd s(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, to->bytes().data(), kNameBytes);
  EXPECT_EQ(connect(s.get(), reinterpret_cast<sockaddr*>(&address),
                    offsetof(sockaddr_un, sun_path) + 1 + kNameBytes),
            0);
  iovec part = {&hello, sizeof(hello)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* beside = CMSG_FIRSTHDR(&message);
    beside->cmsg_level = SOL_SOCKET;
    beside->cmsg_type = SCM_RIGHTS;
    beside->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(beside), &descriptor, sizeof(int));
  }
  EXPECT_EQ(sendmsg(s.get(), &message, 0), static_cast<ssize_t>(sizeof(hello)));
  return s;
}

TEST(SharedMemoryOfferTest, WhatIsSentMustBeWholeAndTrue) {
  UniqueFd unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), kBytes), 0);
  auto good = SharedSegment::Create(kBytes);
  auto small = SharedSegment::Create(kBytes / 2);
  ASSERT_TRUE(good.ok() && small.ok());

  const struct {
    Hello hello;
    int descriptor;
    const char* says;  // Null: it is taken.
  } kCases[] = {
      {{}, good->fd(), nullptr},
      {{}, -1, "was not passed along"},
      {{}, unsealed.get(), "expected a sealed memfd of 65536 bytes"},
      {{}, small->fd(), "expected a sealed memfd of 65536 bytes"},
      {{}, STDIN_FILENO, "expected a sealed memfd of 65536 bytes"},
      {{.proof = 5}, good->fd(), "not what it says"},
      {{.version = 2}, good->fd(), "another protocol"},
      {{.rank = 1}, good->fd(), "it says to be rank 1 of 2"},
      {{.rank = -1}, good->fd(), "it says to be rank -1 of 2"},
      {{.rank = 2}, good->fd(), "it says to be rank 2 of 2"},
      {{.world = 3}, good->fd(), "it says to be rank 0 of 3"},
  };
  for (const auto& c : kCases) {
    Offer b = MustMake(1);
    const UniqueFd connection = SendByHand(b, c.hello, c.descriptor);

    const absl::Status status = b->Collect();

    if (c.says == nullptr) {
      EXPECT_EQ(status, absl::OkStatus());
    } else {
      EXPECT_THAT(Text(status), HasSubstr(c.says));
    }
  }
}

TEST(SharedMemoryOfferTest, AStrangerDisturbsNobody) {
  Offer a = MustMake(0);
  Offer b = MustMake(1);
  const UniqueFd stranger = SendByHand(b, {.magic = 1}, -1);

  ASSERT_EQ(a->Reach({"", b->bytes()}), absl::OkStatus());
  const UniqueFd second = SendByHand(b, {.rank = 0}, -1);

  EXPECT_EQ(b->Collect(), absl::OkStatus());
}

// A process that makes an offer, once it is what `become` makes it.  The test
// is skipped where that is not allowed.
class OtherProcess {
 public:
  explicit OtherProcess(const std::function<bool()>& become) {
    int out[2];
    EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
    pid_ = fork();
    if (pid_ == 0) {
      if (!become()) _exit(1);
      const Offer offer = MustMake(1);
      if (write(out[1], offer->bytes().data(), kOfferBytes) !=
          static_cast<ssize_t>(kOfferBytes)) {
        _exit(2);
      }
      pause();
      _exit(0);
    }
    close(out[1]);
    offer_.resize(kOfferBytes);
    allowed_ = read(out[0], offer_.data(), kOfferBytes) ==
               static_cast<ssize_t>(kOfferBytes);
    close(out[0]);
  }
  ~OtherProcess() { Kill(); }

  void Kill() {
    if (pid_ < 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  bool allowed() const { return allowed_; }
  const std::string& offer() const { return offer_; }

 private:
  pid_t pid_ = -1;
  bool allowed_ = false;
  std::string offer_;
};

TEST(SharedMemoryOfferTest, AnotherUserIsRefused) {
  const OtherProcess other([] { return seteuid(kNobody) == 0; });
  if (!other.allowed()) GTEST_SKIP() << "cannot be another user";

  EXPECT_THAT(Text(MustMake(0)->Reach({"", other.offer()})),
              HasSubstr("runs as another user, uid 65534, not 0"));
}

TEST(SharedMemoryOfferTest, AnotherUserIsTurnedAway) {
  if (geteuid() != 0) GTEST_SKIP() << "cannot be another user";
  Offer b = MustMake(1);
  ASSERT_EQ(seteuid(kNobody), 0);
  const UniqueFd connection = SendByHand(b, {}, -1);
  ASSERT_EQ(seteuid(0), 0);

  EXPECT_THAT(Text(b->Collect()), HasSubstr("another user, uid 65534"));
}

TEST(SharedMemoryOfferTest, AnotherNetworkNamespaceIsOutOfReach) {
  const OtherProcess other([] { return unshare(CLONE_NEWNET) == 0; });
  if (!other.allowed()) GTEST_SKIP() << "cannot make a namespace";

  EXPECT_THAT(Text(MustMake(0)->Reach({"", other.offer()})),
              HasSubstr("another network namespace"));
}

TEST(SharedMemoryOfferTest, NothingIsLeftOfAKilledProcess) {
  OtherProcess other([] { return true; });
  ASSERT_TRUE(other.allowed());
  EXPECT_EQ(MustMake(0)->Reach({"", other.offer()}), absl::OkStatus());

  other.Kill();

  EXPECT_THAT(Text(MustMake(0)->Reach({"", other.offer()})),
              HasSubstr("its socket is not here"));
}

}  // namespace
}  // namespace lockstep
