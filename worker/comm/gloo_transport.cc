#include "worker/comm/gloo_transport.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status.h"
#include "gloo/transport/context.h"
#include "gloo/transport/device.h"
#include "gloo/transport/pair.h"
#include "gloo/transport/tcp/address.h"
#include "gloo/transport/tcp/device.h"
#include "gloo/transport/unbound_buffer.h"
#include "worker/comm/host_address.h"
#include "worker/comm/named_thread.h"

namespace lockstep {
namespace {

using gloo::transport::UnboundBuffer;

constexpr uint64_t kWatchSlot = 1;
constexpr uint64_t kHelloSlot = 2;
constexpr uint64_t kProbeSlot = 3;
constexpr uint64_t kAnswerSlot = 4;
static_assert(kAnswerSlot < kFreeSlotMin);

constexpr uint32_t kHelloMagic = 0x4b43534c;  // "LSCK"
constexpr uint32_t kTransportVersion = 2;

// For Gloo; what really limits a wait is the guard thread.
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 30);

// To be written to the others' connections; they need not read it.
constexpr absl::Duration kFarewellBudget = absl::Milliseconds(500);

// For a process that runs to answer whether it does.
constexpr absl::Duration kAnswerBudget = absl::Seconds(1);
constexpr absl::Duration kAnswerStep = absl::Milliseconds(50);

// For control to say why a transfer broke.  Its end follows that of the
// transfers at once, unless the machine is very busy.
constexpr absl::Duration kVerdictStep = absl::Milliseconds(2);
constexpr int kVerdictStepsMax = 1000;

// The one boundary: runs `call` and turns what Gloo throws into its text.
template <typename Call>
std::optional<std::string> Caught(Call call) {
  try {
    call();
    return std::nullopt;
  } catch (const std::exception& e) {
    return e.what();
  }
}

void IgnoreSigpipe() {
  struct sigaction current;
  if (sigaction(SIGPIPE, nullptr, &current) == 0 &&
      (current.sa_flags & SA_SIGINFO) == 0 && current.sa_handler == SIG_DFL) {
    signal(SIGPIPE, SIG_IGN);
  }
}

std::string ToText(const std::vector<char>& address) {
  return gloo::transport::tcp::Address(address).str();
}

// The halves of what a rank gives for another: its addresses for transfers and
// for control.
struct PeerAddress {
  explicit PeerAddress(const std::string& both)
      : transfers(both.begin(), both.begin() + both.size() / 2),
        control(both.begin() + both.size() / 2, both.end()) {}
  std::vector<char> transfers;
  std::vector<char> control;
};

template <size_t kSize>
void CopyText(absl::string_view text, char (&to)[kSize]) {
  std::memset(to, 0, kSize);
  std::memcpy(to, text.data(), std::min(text.size(), kSize - 1));
}

}  // namespace

// The first message on a connection, either way.
struct GlooTransport::Hello {
  uint32_t magic = kHelloMagic;
  uint32_t version = kTransportVersion;
  int32_t rank = 0;
  int32_t world = 0;
  char session[kSessionBytesMax + 1] = "";
};

// The last one.
struct GlooTransport::Farewell {
  enum Kind : uint32_t { kNone = 0, kLeft, kFailed, kAborted };
  Kind kind = kNone;
  int32_t failed_peer = -1;  // Whose connection failed, if one did.
  char text[248] = "";
};

absl::StatusOr<std::unique_ptr<GlooTransport>> GlooTransport::Listen(
    int rank, int world, const GlooOptions& options, Clock& clock) {
  if (world < 1 || rank < 0 || rank >= world) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected 0 <= rank < world, got rank=", rank, " world=", world));
  }
  if (!(options.timeout > absl::ZeroDuration() &&
        options.timeout <= absl::Hours(24))) {
    return absl::InvalidArgumentError(
        absl::StrCat("timeout=", absl::FormatDuration(options.timeout),
                     ": expected above 0, to 24h"));
  }
  if (options.session.size() > kSessionBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("session: expected at most ", kSessionBytesMax,
                     " bytes, got ", options.session.size()));
  }
  IgnoreSigpipe();
  std::unique_ptr<GlooTransport> transport(
      new GlooTransport(rank, world, options, clock));
  RETURN_IF_ERROR(transport->Open());
  return transport;
}

GlooTransport::GlooTransport(int rank, int world, GlooOptions options,
                             Clock& clock)
    : rank_(rank),
      world_(world),
      options_(std::move(options)),
      clock_(clock),
      addresses_(world),
      farewells_(world) {}

absl::Status GlooTransport::Open() {
  ASSIGN_OR_RETURN(const std::string host, NumericHostAddress(options_.host));
  // Gloo would find the same, but leak memory with its message.
  RETURN_IF_ERROR(CheckListenable(host));
  const auto error = Caught([&] {
    device_ = gloo::transport::tcp::CreateDevice(host.c_str());
    for (auto* context : {&context_, &control_}) {
      *context = device_->createContext(rank_, world_);
      // Of a connect only, five-fold; the guard ends it long before.
      (*context)->setTimeout(std::chrono::hours(10));
      for (int peer = 0; peer < world_; ++peer) {
        if (peer == rank_) continue;
        const std::vector<char> bytes =
            (*context)->createPair(peer)->address().bytes();
        addresses_[peer].append(bytes.data(), bytes.size());
      }
    }
  });
  if (error) {
    return absl::UnavailableError(absl::StrCat(
        "cannot listen on ", host, " for ", world_ - 1, " peers: ", *error));
  }
  guard_thread_ = StartThread("ls-comm-guard", [this] { RunGuard(); });
  return absl::OkStatus();
}

GlooTransport::~GlooTransport() {
  {
    MutexLock lock(&mutex_);
    closing_ = true;
    changed_.SignalAll();
  }
  if (guard_thread_.joinable()) guard_thread_.join();
  if (watch_ != nullptr) watch_->abortWaitRecv();
  if (watch_thread_.joinable()) watch_thread_.join();
  // Before farewells_, into which connections receive.
  watch_ = nullptr;
  answer_ = nullptr;
  control_ = nullptr;
  context_ = nullptr;
}

absl::Status GlooTransport::Connect(
    const std::vector<std::string>& peer_addresses, Instant deadline) {
  if (static_cast<int>(peer_addresses.size()) != world_) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected ", world_, " addresses, one a rank, got ",
                     peer_addresses.size()));
  }
  for (int peer = 0; peer < world_; ++peer) {
    if (peer == rank_) continue;
    const PeerAddress address(peer_addresses[peer]);
    if (Caught([&] { ToText(address.transfers), ToText(address.control); })) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the address of rank ", peer, " is malformed: ",
          peer_addresses[peer].size(), " bytes, which no rank's Listen made"));
    }
  }
  {
    MutexLock lock(&mutex_);
    LS_CHECK(phase_ == Phase::kListening);
    phase_ = Phase::kConnecting;
    connect_deadline_ = deadline;
  }
  SetActivity("connecting");
  RETURN_IF_ERROR(ConnectPeers(peer_addresses));

  if (world_ > 1) {
    const auto error = Caught([&] {
      watch_ = control_->createUnboundBuffer(farewells_.data(),
                                             world_ * sizeof(Farewell));
      answer_ = control_->createUnboundBuffer(&answer_byte_, 1);
    });
    LS_CHECK(!error);
    for (int peer = 0; peer < world_; ++peer) {
      if (peer == rank_) continue;
      if (const auto broken = Caught([&] {
            watch_->recv(peer, kWatchSlot, peer * sizeof(Farewell),
                         sizeof(Farewell));
            answer_->send(peer, kAnswerSlot, 0, 1);
          })) {
        FailBroken(peer, *broken);
        return status();
      }
    }
  }
  {
    MutexLock lock(&mutex_);
    phase_ = Phase::kGreeting;
  }
  RETURN_IF_ERROR(ExchangeHello());

  MutexLock lock(&mutex_);
  if (!failure_.ok()) return failure_;
  phase_ = Phase::kOpen;
  activity_ = "nothing";
  if (world_ > 1) {
    watch_thread_ = StartThread("ls-comm-watch", [this] { RunWatch(); });
  }
  return absl::OkStatus();
}

void GlooTransport::EndConnecting() {
  MutexLock lock(&mutex_);
  connect_deadline_.reset();
  activity_ = "nothing";
}

// All ranks go through their peers in the same order, so that each waits for
// the lowest rank that is missing, and names it.
absl::Status GlooTransport::ConnectPeers(
    const std::vector<std::string>& peer_addresses) {
  for (int peer = 0; peer < world_; ++peer) {
    if (peer == rank_) continue;
    const PeerAddress address(peer_addresses[peer]);
    {
      MutexLock lock(&mutex_);
      if (!failure_.ok()) return failure_;
      BeginWaitLocked(peer);
      activity_ = absl::StrCat("connecting to ", ToText(address.transfers));
    }
    const auto error = Caught([&] {
      context_->getPair(peer)->connect(address.transfers);
      control_->getPair(peer)->connect(address.control);
    });
    {
      MutexLock lock(&mutex_);
      waiting_peer_ = -1;
    }
    if (error) FailBroken(peer, *error);
    RETURN_IF_ERROR(status());
  }
  return absl::OkStatus();
}

absl::Status GlooTransport::ExchangeHello() {
  SetActivity("the greeting");
  Hello mine;
  mine.rank = rank_;
  mine.world = world_;
  CopyText(options_.session, mine.session);
  std::vector<Hello> theirs(world_);
  std::vector<std::unique_ptr<Transfers>> transfers;
  for (int peer = 0; peer < world_; ++peer) {
    if (peer == rank_) continue;
    transfers.push_back(
        Receive(peer, kHelloSlot, &theirs[peer], sizeof(Hello)));
    RETURN_IF_ERROR(transfers.back()->Post(0, sizeof(Hello)));
    transfers.push_back(Send(peer, kHelloSlot, &mine, sizeof(Hello)));
    RETURN_IF_ERROR(transfers.back()->Post(0, sizeof(Hello)));
  }
  for (const auto& t : transfers) RETURN_IF_ERROR(t->WaitAll());

  for (int peer = 0; peer < world_; ++peer) {
    if (peer == rank_) continue;
    Hello& hello = theirs[peer];
    hello.session[kSessionBytesMax] = '\0';
    if (hello.magic == kHelloMagic && hello.version == kTransportVersion &&
        hello.rank == peer && hello.world == world_ &&
        options_.session == hello.session) {
      continue;
    }
    Fail(absl::FailedPreconditionError(absl::StrCat(
             "who answers as rank ", peer, " of ", world_, " in session \"",
             options_.session, "\" (transport version ", kTransportVersion,
             ") is rank ", hello.rank, " of ", hello.world, " in session \"",
             hello.session, "\" (version ", hello.version,
             "): its addresses are of another generation")),
         peer);
    return status();
  }
  return absl::OkStatus();
}

std::unique_ptr<GlooTransport::Transfers> GlooTransport::Send(int peer,
                                                              uint64_t slot,
                                                              const void* data,
                                                              int64_t bytes) {
  return std::unique_ptr<Transfers>(new Transfers(
      *this, peer, slot, /*receive=*/false, const_cast<void*>(data), bytes));
}

std::unique_ptr<GlooTransport::Transfers> GlooTransport::Receive(
    int peer, uint64_t slot, void* data, int64_t bytes) {
  return std::unique_ptr<Transfers>(
      new Transfers(*this, peer, slot, /*receive=*/true, data, bytes));
}

void GlooTransport::SetActivity(std::string activity) {
  MutexLock lock(&mutex_);
  activity_ = std::move(activity);
}

void GlooTransport::Fail(absl::Status why, std::optional<int> peer) {
  MutexLock lock(&mutex_);
  FailLocked(std::move(why), peer);
}

void GlooTransport::FailLocked(absl::Status why, std::optional<int> peer) {
  LS_CHECK(!why.ok());
  if (!failure_.ok()) return;
  failure_ = std::move(why);
  failed_peer_ = peer;
  if (waiting_buffer_ != nullptr) {
    waiting_buffer_->abortWaitRecv();
    waiting_buffer_->abortWaitSend();
  }
  if (sleeper_ != nullptr) sleeper_->Wake();
  changed_.SignalAll();
}

absl::Status GlooTransport::status() const {
  MutexLock lock(&mutex_);
  return failure_;
}

std::optional<int> GlooTransport::failed_peer() const {
  MutexLock lock(&mutex_);
  return failed_peer_;
}

void GlooTransport::BeginWaitLocked(int peer) {
  waiting_peer_ = peer;
  if (connect_deadline_.has_value()) {
    waiting_until_ = *connect_deadline_;
    changed_.SignalAll();
  } else {
    waiting_until_ = clock_.Now() + options_.timeout;
  }
}

absl::Status GlooTransport::BeginWait(int peer, Sleeper& sleeper) {
  MutexLock lock(&mutex_);
  if (!failure_.ok()) return failure_;
  BeginWaitLocked(peer);
  sleeper_ = &sleeper;
  return absl::OkStatus();
}

void GlooTransport::EndWait() {
  MutexLock lock(&mutex_);
  waiting_peer_ = -1;
  sleeper_ = nullptr;
}

bool GlooTransport::FailGone(int peer, bool needed, const std::string& what) {
  AwaitVerdict(peer);
  if (!status().ok()) return true;
  if (!needed && farewells_[peer].kind == Farewell::kLeft) return false;
  FailFor(peer, what);
  return true;
}

absl::Status GlooTransport::Wait(UnboundBuffer& buffer, bool receive,
                                 int peer) {
  {
    MutexLock lock(&mutex_);
    if (!failure_.ok()) return failure_;
    BeginWaitLocked(peer);
    waiting_buffer_ = &buffer;
  }
  bool completed = false;
  const auto error = Caught([&] {
    completed = receive ? buffer.waitRecv(nullptr, kForever)
                        : buffer.waitSend(nullptr, kForever);
  });
  {
    MutexLock lock(&mutex_);
    waiting_peer_ = -1;
    waiting_buffer_ = nullptr;
  }
  if (completed) return absl::OkStatus();
  if (error) FailBroken(peer, *error);
  return status();
}

void GlooTransport::FailBroken(int peer, const std::string& what) {
  AwaitVerdict(peer);
  FailFor(peer, what);
}

void GlooTransport::FailFor(int peer, const std::string& what) {
  MutexLock lock(&mutex_);
  if (!failure_.ok()) return;
  const Farewell& farewell = farewells_[peer];
  switch (farewell.kind) {
    case Farewell::kNone:
      return FailLocked(absl::UnavailableError(
                            absl::StrCat("the connection to rank ", peer,
                                         " broke in ", activity_, ": ", what)),
                        peer);
    case Farewell::kLeft:
      return FailLocked(
          absl::UnavailableError(absl::StrCat(
              "rank ", peer, " has left the communicator, in ", activity_)),
          std::nullopt);
    case Farewell::kAborted:
      return FailLocked(absl::AbortedError(absl::StrCat(
                            "rank ", peer, " aborted: ", farewell.text)),
                        std::nullopt);
    case Farewell::kFailed:
      return FailLocked(absl::UnavailableError(absl::StrCat(
                            "rank ", peer, " reports: ", farewell.text)),
                        farewell.failed_peer < 0        ? std::nullopt
                        : farewell.failed_peer == rank_ ? std::optional(peer)
                                                        : farewell.failed_peer);
  }
}

// What is cut brings nothing more: after this the farewell is complete or never
// came.
void GlooTransport::AwaitVerdict(int peer) {
  for (int i = 0; i < kVerdictStepsMax; ++i) {
    {
      MutexLock lock(&mutex_);
      if (!failure_.ok() || !can_say_farewell()) return;
      if (i > 0) changed_.WaitFor(&mutex_, kVerdictStep);
    }
    if (IsCut(peer)) return;
  }
}

bool GlooTransport::IsCut(int peer) {
  char byte;
  return Caught([&] {
           control_->createUnboundBuffer(&byte, 1)->recv(peer, kProbeSlot, 0,
                                                         1);
         })
      .has_value();
}

// Ends a wait that lasts too long, and says farewell.
void GlooTransport::RunGuard() {
  bool was_open;
  bool says_farewell;
  int overdue = -1;
  {
    MutexLock lock(&mutex_);
    while (!closing_ && failure_.ok() && overdue < 0) {
      // Never longer than this: a wait that begins while this sleeps is over
      // no earlier than that.
      absl::Duration sleep = options_.timeout;
      if (waiting_peer_ >= 0) {
        const absl::Duration left = waiting_until_ - clock_.Now();
        sleep = std::min(sleep, left);
        if (left <= absl::ZeroDuration()) {
          overdue = waiting_peer_;
          continue;
        }
      }
      changed_.WaitFor(&mutex_, sleep);
    }
    was_open = phase_ == Phase::kOpen;
    says_farewell = can_say_farewell();
    if (overdue >= 0 && !was_open) {
      FailLocked(absl::UnavailableError(absl::StrCat(
                     "rank ", overdue, " was silent for the time given for ",
                     activity_)),
                 overdue);
    }
  }
  if (overdue >= 0 && was_open) FailOverdue(overdue);
  if (says_farewell) SayFarewell();
  {
    MutexLock lock(&mutex_);
    if (failure_.ok()) return;  // Closing: connections end with their pairs.
  }
  CloseConnections();
}

// The rank awaited may itself be waiting for one that hangs: who does not even
// answer is at fault before it.
void GlooTransport::FailOverdue(int peer) {
  const std::vector<int> mute = MutePeers();
  const bool is_mute = std::find(mute.begin(), mute.end(), peer) != mute.end();
  const int culprit = mute.empty() || is_mute ? peer : mute.front();
  MutexLock lock(&mutex_);
  const std::string limit = connect_deadline_.has_value()
                                ? "the time given for connecting"
                                : absl::FormatDuration(options_.timeout);
  FailLocked(
      absl::UnavailableError(
          culprit == peer
              ? absl::StrCat("rank ", peer, " was silent for ", limit, " in ",
                             activity_)
              : absl::StrCat("rank ", culprit, " does not answer; rank ", peer,
                             " was awaited for ", limit, " in ", activity_)),
      culprit);
}

// Every rank keeps an answer pending on every control connection, which Gloo's
// thread sends when it is asked for, whatever the others do.
std::vector<int> GlooTransport::MutePeers() {
  std::vector<char> answers(world_);
  std::vector<std::unique_ptr<UnboundBuffer>> asked(world_);
  for (int peer = 0; peer < world_; ++peer) {
    if (peer == rank_) continue;
    asked[peer] = control_->createUnboundBuffer(&answers[peer], 1);
    // One that is cut is the watch's business.
    if (Caught([&] { asked[peer]->recv(peer, kAnswerSlot, 0, 1); })) {
      asked[peer] = nullptr;
    }
  }
  // Ends the wait for a peer once its time is up.  One by one: an abort would
  // also hide an answer that came.
  Mutex mutex;
  CondVar changed;
  int asking = -1;
  bool over = false;
  std::thread reaper = StartThread("ls-comm-reaper", [&] {
    const Instant until = clock_.Now() + kAnswerBudget;
    MutexLock lock(&mutex);
    while (!over) {
      const int peer = asking;
      changed.WaitFor(&mutex, std::max(until - clock_.Now(), kAnswerStep));
      if (clock_.Now() < until || over || peer < 0 || asking != peer) continue;
      asked[peer]->abortWaitRecv();
    }
  });
  std::vector<int> mute;
  for (int peer = 0; peer < world_; ++peer) {
    if (asked[peer] == nullptr) continue;
    {
      MutexLock lock(&mutex);
      asking = peer;
    }
    bool answered = false;
    const auto cut =
        Caught([&] { answered = asked[peer]->waitRecv(nullptr, kForever); });
    if (!cut && !answered) mute.push_back(peer);
  }
  {
    MutexLock lock(&mutex);
    over = true;
    changed.SignalAll();
  }
  reaper.join();
  return mute;
}

// Notices broken connections and farewells, whatever is waited for.
void GlooTransport::RunWatch() {
  for (;;) {
    int from = -1;
    bool received = false;
    const auto error =
        Caught([&] { received = watch_->waitRecv(&from, kForever); });
    if (!error && !received) return;  // Closing.
    if (!error) {
      // When two came at once the first one's rank is lost; its connection's
      // end brings it up again.
      if (farewells_[from].kind == Farewell::kLeft) continue;
      FailFor(from, "farewell");
      return;
    }
    if (!status().ok()) return;
    // A rank that broke off without a farewell is at fault before one that
    // gives its reasons.  If all that are gone just left, nothing has failed;
    // what still needs one of them will.
    std::optional<int> culprit;
    for (int peer = 0; peer < world_; ++peer) {
      if (peer == rank_ || !IsCut(peer)) continue;
      const Farewell::Kind kind = farewells_[peer].kind;
      if (kind == Farewell::kLeft) continue;
      if (!culprit || kind == Farewell::kNone) culprit = peer;
      if (kind == Farewell::kNone) break;
    }
    if (culprit) FailFor(*culprit, *error);
    return;
  }
}

void GlooTransport::SayFarewell() {
  Farewell farewell;
  {
    MutexLock lock(&mutex_);
    if (failure_.ok()) {
      farewell.kind = Farewell::kLeft;
    } else {
      farewell.kind = absl::IsUnavailable(failure_) ? Farewell::kFailed
                                                    : Farewell::kAborted;
      farewell.failed_peer = failed_peer_.value_or(-1);
      CopyText(failure_.message(), farewell.text);
    }
  }
  std::vector<std::unique_ptr<UnboundBuffer>> sends;
  for (int peer = 0; peer < world_; ++peer) {
    if (peer == rank_) continue;
    auto send = control_->createUnboundBuffer(&farewell, sizeof(farewell));
    const auto broken =
        Caught([&] { send->send(peer, kWatchSlot, 0, sizeof(farewell)); });
    if (!broken) sends.push_back(std::move(send));
  }
  const Instant until = clock_.Now() + kFarewellBudget;
  for (const auto& send : sends) {
    const int64_t left_ms =
        std::max<int64_t>(1, absl::ToInt64Milliseconds(until - clock_.Now()));
    Caught(
        [&] { send->waitSend(nullptr, std::chrono::milliseconds(left_ms)); });
  }
}

// Softly, so that what was sent arrives.  Gloo does this when a wait times out,
// in every state of a connection and for waits in every thread.
void GlooTransport::CloseConnections() {
  for (const auto& context : {context_, control_}) {
    char byte;
    Caught([&] {
      context->createUnboundBuffer(&byte, 1)->waitRecv(
          nullptr, std::chrono::milliseconds(1));
    });
  }
}

GlooTransport::Transfers::Transfers(GlooTransport& transport, int peer,
                                    uint64_t slot, bool receive, void* data,
                                    int64_t bytes)
    : transport_(transport),
      peer_(peer),
      slot_(slot),
      receive_(receive),
      buffer_(transport.context_->createUnboundBuffer(data, bytes)) {}

GlooTransport::Transfers::~Transfers() = default;

absl::Status GlooTransport::Transfers::Post(int64_t offset, int64_t bytes) {
  const auto error = Caught([&] {
    if (receive_) {
      buffer_->recv(peer_, slot_, offset, bytes);
    } else {
      buffer_->send(peer_, slot_, offset, bytes);
    }
  });
  if (error) {
    transport_.FailBroken(peer_, *error);
    return transport_.status();
  }
  ++pending_;
  return absl::OkStatus();
}

absl::Status GlooTransport::Transfers::Wait() {
  LS_CHECK(pending_ > 0);
  RETURN_IF_ERROR(transport_.Wait(*buffer_, receive_, peer_));
  --pending_;
  return absl::OkStatus();
}

absl::Status GlooTransport::Transfers::WaitAll() {
  while (pending_ > 0) RETURN_IF_ERROR(Wait());
  return absl::OkStatus();
}

}  // namespace lockstep
