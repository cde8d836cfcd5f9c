#include "worker/agent/agent.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/log.h"
#include "common/session_proto.h"
#include "common/status.h"

namespace lockstep {
namespace {

// How much of a dead trainer's last words is read: what its socket held.
constexpr int kLastReadsMax = 256;

// How long a killed trainer is waited for at the end.
constexpr absl::Duration kReapTimeout = absl::Seconds(2);

// A poll that is ready for nothing.
constexpr int kNoFd = -1;

v1::WorkerMessage MessageOf(const SendReports& reports) {
  v1::WorkerMessage message;
  v1::StepReports& proto = *message.mutable_step_reports();
  proto.set_first_sequence(reports.first_sequence);
  proto.set_dropped_count(reports.dropped_count);
  for (const std::string& report : reports.reports) {
    // AgentLink has parsed and serialized it.
    LS_CHECK(proto.add_reports()->ParseFromString(report));
  }
  return message;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Agent>> Agent::Create(Options options,
                                                     Clock& clock) {
  ASSIGN_OR_RETURN(AgentCore core, AgentCore::Create(options.core));
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.has_value()) {
    return absl::UnavailableError(
        absl::StrCat("eventfd: ", std::strerror(errno)));
  }
  return std::unique_ptr<Agent>(
      new Agent(std::move(options), std::move(core), std::move(wake), clock));
}

Agent::Trainer::Trainer(TrainerId the_id,
                        std::unique_ptr<TrainerProcess> the_process)
    : id(the_id),
      process(std::move(the_process)),
      prefix(absl::StrCat("[trainer ", process->process_id(), "] ")) {}

Agent::Agent(Options options, AgentCore core, UniqueFd wake, Clock& clock)
    : options_(std::move(options)),
      clock_(clock),
      wake_(std::move(wake)),
      core_(std::move(core)),
      output_(options_.output_fd, [this] { Wake(); }) {}

Agent::~Agent() { LS_CHECK(streams_.empty() && !trainer_.has_value()); }

void Agent::Wake() {
  const uint64_t one = 1;
  // It can only fail when it would go beyond 2^64 - 2, and then it is awake.
  [[maybe_unused]] const ssize_t n = write(wake_.get(), &one, sizeof one);
}

void Agent::Stop() {
  stop_.store(true);
  Wake();
}

void Agent::Post(Mail mail) {
  MutexLock lock(&mutex_);
  mail_.push_back(std::move(mail));
  // Before the lock is given up: after its last mail this may be destroyed.
  Wake();
}

absl::Status Agent::Run() {
  LOG(INFO) << "worker starts" << Field("worker", options_.core.worker)
            << Field("incarnation", options_.core.incarnation)
            << Field("coordinator", options_.stream.coordinator);
  Tell([&](Instant now, AgentEffects& e) { core_.Start(now, e); });
  while (!exit_.has_value() && !stop_.load()) {
    WaitAndHandle(core_.NextDeadline());
    if (exit_.has_value()) break;
    Tell([&](Instant now, AgentEffects& e) { core_.Tick(now, e); });
  }
  if (exit_.has_value()) {
    LOG(ERROR) << "worker must end" << Field("worker", options_.core.worker)
               << Field("reason", exit_->message());
    ShutDown(false);
    return *exit_;
  }
  LOG(INFO) << "worker stops" << Field("worker", options_.core.worker);
  ShutDown(true);
  return absl::OkStatus();
}

// -------------------------------------------------------------- the core

template <typename Event>
void Agent::Tell(Event event) {
  if (exit_.has_value()) return;
  AgentEffects effects;
  event(clock_.Now(), effects);
  CarryOut(std::move(effects));
  // What could not be done is an event of its own.
  while (!stillborn_.empty() && !exit_.has_value()) {
    const auto [trainer, why] = std::move(stillborn_.back());
    stillborn_.pop_back();
    AgentEffects more;
    core_.OnTrainerDied(clock_.Now(), trainer, why, more);
    CarryOut(std::move(more));
  }
  LogChanges();
}

void Agent::CarryOut(AgentEffects effects) {
  for (AgentEffect& effect : effects) {
    if (exit_.has_value()) return;
    CarryOut(effect);
  }
}

void Agent::CarryOut(AgentEffect& effect) {
  if (std::holds_alternative<OpenStream>(effect)) {
    if (SessionStream* old = stream(); old != nullptr) old->Cancel();
    ++stream_number_;
    streams_[stream_number_] = SessionStream::Open(
        options_.stream, stream_number_,
        {.on_message =
             [this](int64_t number, v1::CoordinatorMessage message) {
               Post(StreamMessage{number, std::move(message)});
             },
         .on_closed =
             [this](int64_t number, absl::Status status) {
               Post(StreamClosed{number, std::move(status)});
             }});
  } else if (auto* hello = std::get_if<SendHello>(&effect)) {
    v1::WorkerMessage message;
    *message.mutable_hello() = ToProto(hello->hello);
    Send(std::move(message));
  } else if (auto* status = std::get_if<SendStatus>(&effect)) {
    v1::WorkerMessage message;
    *message.mutable_status() = ToProto(status->status);
    Send(std::move(message));
  } else if (auto* reports = std::get_if<SendReports>(&effect)) {
    Send(MessageOf(*reports));
  } else if (auto* spawn = std::get_if<SpawnTrainer>(&effect)) {
    LS_CHECK(!trainer_.has_value());
    auto process = TrainerProcess::Spawn(options_.trainer);
    if (!process.ok()) {
      stillborn_.emplace_back(spawn->trainer, process.status().message());
      return;
    }
    trainer_.emplace(spawn->trainer, *std::move(process));
    LOG(INFO) << "trainer started" << Field("trainer", spawn->trainer)
              << Field("pid", trainer_->process->process_id());
  } else if (auto* kill = std::get_if<KillTrainer>(&effect)) {
    LS_CHECK(trainer_.has_value() && trainer_->id == kill->trainer);
    KillTrainerProcess(kill->reason);
  } else if (auto* tell = std::get_if<TellTrainer>(&effect)) {
    LS_CHECK(trainer_.has_value() && trainer_->id == tell->trainer);
    if (!trainer_->link_open) return;  // It is as good as dead.
    const absl::Status sent = trainer_->process->link().Send(tell->command);
    if (!sent.ok()) HandleLinkEnd(sent);
  } else {
    exit_ = std::get<Exit>(effect).status;
  }
}

SessionStream* Agent::stream() {
  const auto it = streams_.find(stream_number_);
  return it == streams_.end() ? nullptr : it->second.get();
}

void Agent::Send(v1::WorkerMessage message) {
  // None: it has just ended, and its end is in the mail.
  if (SessionStream* s = stream(); s != nullptr) s->Send(std::move(message));
}

// ---------------------------------------------------------------- events

void Agent::WaitAndHandle(Instant deadline) {
  pollfd wake{wake_.get(), POLLIN, 0};
  pollfd death{kNoFd, POLLIN, 0};
  pollfd link{kNoFd, POLLIN, 0};
  pollfd output{kNoFd, POLLIN, 0};
  if (trainer_.has_value()) {
    TrainerProcess& process = *trainer_->process;
    death.fd = process.death_fd();
    if (trainer_->link_open) {
      link.fd = process.link().fd();
      if (process.link().wants_write()) link.events |= POLLOUT;
    }
    if (!output_.full()) output.fd = process.output_fd();
    deadline =
        std::min(deadline, trainer_->link_end_deadline.value_or(deadline));
  }
  pollfd fds[] = {wake, death, link, output};
  const absl::Duration wait =
      std::clamp(deadline - clock_.Now(), absl::ZeroDuration(), absl::Hours(1));
  const timespec timeout = absl::ToTimespec(wait);
  if (ppoll(fds, std::size(fds), &timeout, nullptr) < 0) {
    LS_CHECK(errno == EINTR);
    return;
  }
  if (fds[0].revents != 0) {
    uint64_t count;
    [[maybe_unused]] const ssize_t n = read(wake_.get(), &count, sizeof count);
    HandleMail();
  }
  // Each may have ended the trainer, or the agent.
  const auto goes_on = [&] { return trainer_.has_value() && !exit_; };
  if (goes_on() && fds[3].revents != 0) {
    PassOn(trainer_->process->ReadOutput());
  }
  if (goes_on() && fds[1].revents != 0) {
    HandleTrainerDeath();
    return;
  }
  if (goes_on() && fds[2].revents != 0) {
    HandleLink((fds[2].revents & ~POLLOUT) != 0,
               (fds[2].revents & POLLOUT) != 0);
  }
  if (goes_on() && trainer_->link_end_deadline.has_value() &&
      *trainer_->link_end_deadline <= clock_.Now()) {
    trainer_->link_end_deadline.reset();
    KillTrainerProcess("it closed its link and did not end");
  }
}

void Agent::HandleMail() {
  std::vector<Mail> mail;
  {
    MutexLock lock(&mutex_);
    mail.swap(mail_);
  }
  for (Mail& item : mail) {
    if (auto* message = std::get_if<StreamMessage>(&item)) {
      if (message->stream == stream_number_) HandleMessage(*message);
      continue;
    }
    auto& closed = std::get<StreamClosed>(item);
    streams_.erase(closed.stream);
    if (closed.stream != stream_number_ || exit_.has_value()) continue;
    // The same again and again while the coordinator is away is said once.
    const std::string why = closed.status.ToString();
    if (core_.connected() || why != logged_closing_) {
      LOG(WARNING) << "no contact with the coordinator"
                   << Field("coordinator", options_.stream.coordinator)
                   << Field("reason", why);
      logged_closing_ = why;
    }
    Tell([&](Instant now, AgentEffects& e) {
      core_.OnStreamClosed(now, closed.status, e);
    });
  }
}

void Agent::HandleMessage(const StreamMessage& mail) {
  const auto refuse = [&](const absl::Status& status) {
    // Not to be mended by asking again, but by another version at either end;
    // until then each attempt ends here.
    LOG(ERROR) << "the coordinator sent what is no message of the protocol"
               << Field("reason", status.message());
    if (SessionStream* s = stream(); s != nullptr) s->Cancel();
  };
  switch (mail.message.body_case()) {
    case v1::CoordinatorMessage::kWelcome: {
      const auto welcome = FromProto(mail.message.welcome());
      if (!welcome.ok()) return refuse(welcome.status());
      const bool was = core_.connected();
      Tell([&](Instant now, AgentEffects& e) {
        core_.OnWelcome(now, *welcome, e);
      });
      if (!was && core_.connected()) {
        logged_closing_.clear();
        LOG(INFO) << "in contact with the coordinator"
                  << Field("coordinator", options_.stream.coordinator)
                  << Field("incarnation", welcome->coordinator_incarnation)
                  << Field("lease", absl::FormatDuration(welcome->lease));
      }
      break;
    }
    case v1::CoordinatorMessage::kCommand: {
      const auto command = FromProto(mail.message.command());
      if (!command.ok()) return refuse(command.status());
      Tell([&](Instant now, AgentEffects& e) {
        core_.OnCommand(now, *command, e);
      });
      break;
    }
    case v1::CoordinatorMessage::kStepReportsAck:
      Tell([&](Instant now, AgentEffects& e) {
        core_.OnReportsAck(now, mail.message.step_reports_ack().sequence(), e);
      });
      break;
    case v1::CoordinatorMessage::BODY_NOT_SET:
      return refuse(absl::InvalidArgumentError("a message without a body"));
  }
  if (mail.stream != stream_number_) return;
  if (SessionStream* s = stream(); s != nullptr) s->ReadNext();
}

void Agent::HandleLink(bool readable, bool writable) {
  AgentLink& link = trainer_->process->link();
  if (writable) {
    if (const absl::Status status = link.Write(); !status.ok()) {
      // Its end is to be read, after what it said last.
      readable = true;
    }
  }
  if (!readable) return;
  std::vector<TrainerMessage> messages;
  const absl::Status status = link.Read(messages);
  HandleTrainerMessages(messages);
  if (!status.ok() && trainer_.has_value()) HandleLinkEnd(status);
}

void Agent::HandleLinkEnd(const absl::Status& status) {
  if (!trainer_->link_open) return;
  if (absl::IsUnavailable(status)) {
    // It is ending, most likely; its death will tell.  What it said last may be
    // still to be read, and is, then.
    trainer_->link_open = false;
    trainer_->link_end_deadline = clock_.Now() + options_.link_end_patience;
    return;
  }
  trainer_->link_open = false;
  KillTrainerProcess(absl::StrCat("its link: ", status.message()));
}

void Agent::HandleTrainerMessages(std::vector<TrainerMessage>& messages) {
  const TrainerId id = trainer_->id;
  for (TrainerMessage& message : messages) {
    Tell([&](Instant now, AgentEffects& e) {
      if (std::holds_alternative<TrainerReady>(message)) {
        core_.OnTrainerReady(now, id, e);
      } else if (auto* holds = std::get_if<TrainerHolds>(&message)) {
        core_.OnTrainerHolds(now, id, holds->held, e);
      } else if (std::holds_alternative<TrainerProgress>(message)) {
        core_.OnTrainerProgress(now, id, e);
      } else {
        auto& report = std::get<TrainerStepReport>(message);
        core_.OnStepReport(now, id, report.key, report.step,
                           std::move(report.report), e);
      }
    });
  }
}

void Agent::HandleTrainerDeath() {
  // First what it said, then that it died.
  absl::Status status;
  for (int i = 0; i < kLastReadsMax && status.ok(); ++i) {
    std::vector<TrainerMessage> messages;
    status = trainer_->process->link().Read(messages);
    HandleTrainerMessages(messages);
  }
  std::vector<std::string> lines;
  const std::string how = trainer_->process->Reap(lines);
  PassOn(lines);
  const TrainerId id = trainer_->id;
  LOG(WARNING) << "trainer died" << Field("trainer", id)
               << Field("pid", trainer_->process->process_id())
               << Field("how", how);
  trainer_.reset();
  Tell([&](Instant now, AgentEffects& e) {
    core_.OnTrainerDied(now, id, how, e);
  });
}

void Agent::PassOn(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) output_.Write(trainer_->prefix, line);
}

void Agent::KillTrainerProcess(const std::string& reason) {
  LOG(WARNING) << "killing the trainer" << Field("trainer", trainer_->id)
               << Field("reason", reason);
  trainer_->process->Kill(reason);
}

void Agent::LogChanges() {
  const WorkerStatus& now = core_.status();
  if (now.trainer_ready && !logged_status_.trainer_ready) {
    LOG(INFO) << "trainer ready" << Field("trainer", trainer_->id);
  }
  const auto& before = logged_status_.held;
  if (now.held.has_value()) {
    const bool same = before.has_value() && before->key == now.held->key;
    if (!same || before->phase != now.held->phase) {
      LOG(INFO) << "generation" << Field("job", now.held->key.job)
                << Field("generation", now.held->key.generation)
                << Field("rank", now.held->rank)
                << Field("phase", PhaseName(now.held->phase))
                << (now.held->failure.has_value()
                        ? Field("failure", now.held->failure->message)
                        : "");
    } else if (before->detail != now.held->detail &&
               !now.held->detail.empty()) {
      LOG(INFO) << "generation waits" << Field("job", now.held->key.job)
                << Field("generation", now.held->key.generation)
                << Field("detail", now.held->detail);
    }
  } else if (before.has_value()) {
    LOG(INFO) << "generation released" << Field("job", before->key.job)
              << Field("generation", before->key.generation);
  }
  logged_status_ = now;
}

// --------------------------------------------------------------- the end

void Agent::ShutDown(bool leaving) {
  // The core is asked no more.
  if (!exit_.has_value()) exit_ = absl::OkStatus();
  if (SessionStream* s = stream(); s != nullptr) {
    leaving ? s->Finish() : s->Cancel();
  }
  if (trainer_.has_value()) trainer_->process->Kill("it stops");
  const Instant leave_deadline =
      clock_.Now() + (leaving ? options_.leave_timeout : absl::ZeroDuration());
  const Instant reap_deadline = clock_.Now() + kReapTimeout;
  bool cancelled = false;
  while (!streams_.empty() || trainer_.has_value()) {
    const Instant now = clock_.Now();
    if (!cancelled && leave_deadline <= now) {
      for (auto& [number, s] : streams_) s->Cancel();
      cancelled = true;
    }
    if (trainer_.has_value() && reap_deadline <= now) {
      LOG(WARNING) << "the trainer does not end"
                   << Field("pid", trainer_->process->process_id());
      trainer_.reset();
      continue;
    }
    pollfd fds[] = {
        {wake_.get(), POLLIN, 0},
        {trainer_.has_value() ? trainer_->process->death_fd() : kNoFd, POLLIN,
         0}};
    Instant next = InfiniteFuture();
    if (!cancelled) next = std::min(next, leave_deadline);
    if (trainer_.has_value()) next = std::min(next, reap_deadline);
    const timespec timeout = absl::ToTimespec(
        std::clamp(next - now, absl::ZeroDuration(), absl::Hours(1)));
    if (ppoll(fds, std::size(fds), &timeout, nullptr) < 0) continue;
    if (fds[0].revents != 0) {
      uint64_t count;
      [[maybe_unused]] const ssize_t n =
          read(wake_.get(), &count, sizeof count);
      HandleMail();
    }
    if (fds[1].revents != 0) {
      std::vector<std::string> lines;
      trainer_->process->Reap(lines);
      PassOn(lines);
      trainer_.reset();
    }
  }
}

}  // namespace lockstep
