// Connections among the ranks of a generation over TCP, with Gloo as transport.
//
// Gloo moves bytes between two ranks' memory; this adds what it lacks: an end
// that names the rank at fault, an abort that wakes every wait, and errors that
// are Statuses.
//
//   Listen ---> Connect ---> open ---> failed
//      |           |           |          ^
//      '-----------'-----------'----------'   first error, or Abort
//
// Every two ranks share two connections: one for transfers, and one for
// control, which is idle until the end.  A failure is noticed in one of three
// ways, and the first one stays:
//   - the connections to a rank break: a watch, a receive that is always
//   pending
//     on every control connection, ends; so a death is noticed within
//     milliseconds, whomever the collective is waiting for;
//   - one wait lasts longer than the time-out: a guard thread looks at the wait
//     under way, and asks all ranks whether they still run, since the one that
//     is awaited may be waiting for one that hangs.  (Gloo's own time-outs are
//     not used: they close every connection, and then the others would blame
//     this rank.);
//   - another rank says farewell: it has failed or was aborted, and tells whose
//     fault it is, so that all ranks name the same one.  It does so over
//     control, where nothing is in its way; who sees a transfer broken waits
//     for control to say why.
// A rank that ends without a failure says farewell too; that fails what others
// still need from it and nothing else.
//
// Who waits for a rank by other means than a transfer says so (BeginWait), and
// the same three end that wait.
//
// All waiting and posting of transfers is done by one thread; Fail and the
// accessors may be called from any.
#ifndef WORKER_COMM_GLOO_TRANSPORT_H_
#define WORKER_COMM_GLOO_TRANSPORT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"

namespace gloo::transport {
class Context;
class Device;
class UnboundBuffer;
}  // namespace gloo::transport

namespace lockstep {

struct GlooOptions {
  // Where peers reach this rank: a numeric address of this host, or the name of
  // a network interface.
  std::string host = "127.0.0.1";

  // A rank from which something is awaited for longer than this is given up.
  // Includes the time by which ranks come to a collective apart.
  absl::Duration timeout = absl::Seconds(60);

  // Which group this is, the same on all ranks: a connection from another
  // (say, of an earlier generation) is refused.  At most kSessionBytesMax.
  std::string session;
};

inline constexpr int kSessionBytesMax = 127;

// Lower slots are the transport's own.
inline constexpr uint64_t kFreeSlotMin = 16;

class GlooTransport {
 public:
  class Transfers;

  // What ends a wait that is not one for a transfer.  Wake must not call the
  // transport.
  class Sleeper {
   public:
    virtual ~Sleeper() = default;
    virtual void Wake() = 0;
  };

  // Opens a port per peer.  Also makes the process ignore SIGPIPE, unless it
  // handles it, since Gloo writes to connections that may be gone.
  //
  // Errors:
  //   InvalidArgument: rank, world or an option is out of range.
  //   Unavailable: no address or port could be had.
  static absl::StatusOr<std::unique_ptr<GlooTransport>> Listen(
      int rank, int world, const GlooOptions& options, Clock& clock);
  ~GlooTransport();

  int rank() const { return rank_; }
  int world() const { return world_; }

  // Opaque bytes; entry i is for rank i to reach this one.  The own is empty.
  const std::vector<std::string>& addresses() const { return addresses_; }

  // Connects to all peers.  peer_addresses[i] is what rank i has in its
  // addresses() for this rank; the own entry is not read.  `deadline` holds
  // until EndConnecting, for transfers too, and the time-out from then on.
  //
  // Errors:
  //   InvalidArgument: not `world` addresses, or one is malformed.
  //   Unavailable: a rank did not connect by `deadline`, or refused;
  //     failed_peer() says which.
  //   FailedPrecondition: a rank belongs to another session or world.
  //   Otherwise: what Fail was given.
  absl::Status Connect(const std::vector<std::string>& peer_addresses,
                       Instant deadline);
  void EndConnecting();

  // Transfers of one direction with one peer, out of or into [data, data +
  // bytes), which must stay until this is destroyed.  Those of one slot are
  // matched in order; both sides must agree in their sizes.
  std::unique_ptr<Transfers> Send(int peer, uint64_t slot, const void* data,
                                  int64_t bytes);
  std::unique_ptr<Transfers> Receive(int peer, uint64_t slot, void* data,
                                     int64_t bytes);

  // What to call the collective under way in messages.
  void SetActivity(std::string activity);

  // A wait for `peer` that is not one for a transfer.  When this fails before
  // EndWait, which includes that the wait was too long, `sleeper` is woken.
  // Returns the first failure if there was one; then no wait has begun.
  absl::Status BeginWait(int peer, Sleeper& sleeper);
  void EndWait();

  // `peer` is seen to be gone: fails for the reason that it gave, if it gave
  // one.  Returns false, and does not fail, when it left without a failure and
  // is not `needed`.
  bool FailGone(int peer, bool needed, const std::string& what);

  // Ends everything: waits return `why`, the other ranks are told.  `peer` is
  // the rank at fault, if one is.  The first call counts.
  void Fail(absl::Status why, std::optional<int> peer);

  // OK, or the first failure.
  absl::Status status() const;
  std::optional<int> failed_peer() const;

 private:
  struct Hello;
  struct Farewell;
  // Greeting: all connections are made, and some ranks may be open already.
  enum class Phase { kListening, kConnecting, kGreeting, kOpen };

  GlooTransport(int rank, int world, GlooOptions options, Clock& clock);
  absl::Status Open();
  absl::Status ConnectPeers(const std::vector<std::string>& peer_addresses);
  absl::Status ExchangeHello();

  // Waits for one completion of `buffer`, whose transfers are with `peer`.
  absl::Status Wait(gloo::transport::UnboundBuffer& buffer, bool receive,
                    int peer);

  // A connection to `peer` is broken: finds out why and fails.
  void FailBroken(int peer, const std::string& what);

  // Fails for the reason that `peer`'s farewell gives, if it came.
  void FailFor(int peer, const std::string& what);

  // Whether control to `peer` is broken; waits until it is, or for a while.
  bool IsCut(int peer);
  void AwaitVerdict(int peer);

  // `peer` has been waited for too long: fails for whoever is at fault.
  void FailOverdue(int peer);
  std::vector<int> MutePeers();

  bool can_say_farewell() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return phase_ == Phase::kGreeting || phase_ == Phase::kOpen;
  }

  void RunGuard();
  void RunWatch();
  void SayFarewell();
  void CloseConnections();
  void BeginWaitLocked(int peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FailLocked(absl::Status why, std::optional<int> peer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int rank_;
  const int world_;
  const GlooOptions options_;
  Clock& clock_;
  std::vector<std::string> addresses_;

  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<gloo::transport::Context> context_;  // Transfers.
  std::shared_ptr<gloo::transport::Context> control_;

  // What the others' farewells are received into: entry i is rank i's, written
  // by Gloo's thread, complete once it was received or control is cut.
  std::vector<Farewell> farewells_;
  std::unique_ptr<gloo::transport::UnboundBuffer> watch_;

  // What others may ask for, to see that this process runs.
  char answer_byte_ = 1;
  std::unique_ptr<gloo::transport::UnboundBuffer> answer_;

  // Taken before any lock of Gloo's.
  mutable Mutex mutex_;
  CondVar changed_;
  Phase phase_ ABSL_GUARDED_BY(mutex_) = Phase::kListening;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::optional<int> failed_peer_ ABSL_GUARDED_BY(mutex_);
  std::string activity_ ABSL_GUARDED_BY(mutex_);
  // The wait under way; waiting_peer_ is -1 when there is none.  Of buffer and
  // sleeper one is set, and neither while a connection is made.
  int waiting_peer_ ABSL_GUARDED_BY(mutex_) = -1;
  gloo::transport::UnboundBuffer* waiting_buffer_ ABSL_GUARDED_BY(mutex_) =
      nullptr;
  Sleeper* sleeper_ ABSL_GUARDED_BY(mutex_) = nullptr;
  Instant waiting_until_ ABSL_GUARDED_BY(mutex_) = InfiniteFuture();
  // Until EndConnecting.
  std::optional<Instant> connect_deadline_ ABSL_GUARDED_BY(mutex_);

  std::thread guard_thread_;
  std::thread watch_thread_;
};

// Pending transfers; destroying it gives up those not waited for.
class GlooTransport::Transfers {
 public:
  ~Transfers();

  // Starts one of [offset, offset + bytes) of the range.
  absl::Status Post(int64_t offset, int64_t bytes);

  // Waits for the next to complete.
  absl::Status Wait();

  // Waits for all that were posted and not waited for.
  absl::Status WaitAll();

 private:
  friend class GlooTransport;
  Transfers(GlooTransport& transport, int peer, uint64_t slot, bool receive,
            void* data, int64_t bytes);

  GlooTransport& transport_;
  const int peer_;
  const uint64_t slot_;
  const bool receive_;
  int64_t pending_ = 0;
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
};

}  // namespace lockstep

#endif  // WORKER_COMM_GLOO_TRANSPORT_H_
