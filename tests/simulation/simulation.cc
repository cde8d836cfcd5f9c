#include "tests/simulation/simulation.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/micro_batches.h"
#include "coordinator/core/coordinator.h"
#include "tests/simulation/event_queue.h"
#include "worker/agent/agent_core.h"

namespace lockstep::simulation {
namespace {

constexpr absl::Duration kLease = absl::Seconds(3);

// What a stream carries, either way.
using Upward = std::variant<Hello, WorkerStatus, SendReports>;
using Downward = std::variant<Welcome, Command, int64_t /*reports ack*/>;

// A step report as the simulation's trainers make it.
struct Report {
  GenerationKey key;
  int64_t step = 0;

  std::string Serialize() const {
    return absl::StrCat(key.job.value, " ", key.generation, " ", step);
  }
  static Report Parse(const std::string& text) {
    Report r;
    char job[64];
    long long generation, step;
    std::sscanf(text.c_str(), "%63s %lld %lld", job, &generation, &step);
    r.key = {JobId{job}, generation};
    r.step = step;
    return r;
  }
};

struct JobPlan {
  std::string request_id;
  JobNeeds needs;
  int64_t steps = 0;
  bool impossible = false;  // Needs more workers than any class has.
  std::optional<JobId> id;  // Once acknowledged.
  bool cancel_answered = false;
  bool cancel_acknowledged = false;
};

class Simulation {
 public:
  explicit Simulation(const Options& options)
      : options_(options), rng_(options.seed), workers_(options.worker_count) {}

  Result Run() {
    for (size_t i = 0; i < workers_.size(); ++i) {
      workers_[i].id = WorkerId{absl::StrCat("w", i)};
    }
    StartCoordinator();
    for (size_t i = 0; i < workers_.size(); ++i) {
      queue_.After(Between(0, 2000), [this, i] { StartWorker(i); });
    }
    for (int i = 0; i < options_.job_count; ++i) PlanJob(i);
    ScheduleFault();

    const Instant faults_end =
        Instant{} + absl::Seconds(options_.fault_seconds);
    while (queue_.RunNext(faults_end)) Check();
    healing_ = true;
    Heal();
    const Instant end = faults_end + absl::Seconds(options_.recovery_seconds);
    while (!AllEnded() && queue_.RunNext(end)) Check();
    CheckProgress();
    return result_;
  }

 private:
  // ------------------------------------------------------------- parts

  struct Stream {
    size_t worker = 0;
    bool open = true;  // As the worker sees it.
    bool coordinator_open = true;
    bool broken = false;  // Carries nothing, whatever its ends believe.
    std::optional<Upward> last_up;  // That arrived.
    SessionId session;              // Of the coordinator's start `epoch`.
    int64_t epoch = 0;
    Instant up_last, down_last;  // Messages do not overtake each other.
  };

  struct Trainer {
    TrainerId id;
    bool alive = true;
    bool deaf = false;  // Ignores what it is told.
    std::optional<HeldGeneration> held;
    std::vector<WorkerId> members;
  };

  struct Worker {
    WorkerId id;
    std::optional<AgentCore> agent;
    int64_t epoch = 0;  // Which start; ends scheduled work of older ones.
    std::shared_ptr<Stream> stream;
    std::unique_ptr<Trainer> trainer;
    bool partitioned = false;  // From the coordinator.
    Instant tick_at;
  };

  // ------------------------------------------------------------ chance

  int64_t Below(int64_t n) {
    return std::uniform_int_distribution<int64_t>(0, n - 1)(rng_);
  }
  bool OneIn(int64_t n) { return Below(n) == 0; }
  absl::Duration Between(int64_t low_ms, int64_t high_ms) {
    return absl::Milliseconds(low_ms) +
           absl::Microseconds(Below((high_ms - low_ms) * 1000 + 1));
  }

  void Log(const std::string& line) {
    if (!options_.log) return;
    std::fprintf(stderr, "%9.3f %s\n",
                 absl::ToDoubleSeconds(queue_.now().since_start), line.c_str());
  }
  void Violation(const std::string& what) {
    if (result_.violations.size() < 5) {
      result_.violations.push_back(absl::StrCat(
          "at ", absl::FormatDuration(queue_.now().since_start), ": ", what));
    }
    Log("VIOLATION " + what);
  }

  Moment Now() const {
    return {queue_.now(), absl::UnixEpoch() + queue_.now().since_start};
  }

  // ------------------------------------------------------- coordinator

  void StartCoordinator() {
    ++coordinator_epoch_;
    CoordinatorOptions options;
    options.incarnation = {++stored_incarnation_};
    options.lease = kLease;
    options.forming_timeout = absl::Seconds(20);
    options.step_bound = absl::Seconds(8);
    options.reattach_window = 2 * kLease;
    options.finished_job_max = options_.finished_job_max;
    std::vector<JobRecord> stored;
    for (const auto& [id, record] : store_) stored.push_back(record);
    Effects effects;
    coordinator_ =
        Coordinator::Create(options, Now(), std::move(stored), effects).value();
    last_session_ = 0;
    Carry(std::move(effects));
    Log(absl::StrCat("coordinator starts as ", stored_incarnation_));
    TickCoordinatorLater();
  }

  void CrashCoordinator() {
    if (!coordinator_.has_value()) return;
    ++result_.coordinator_crashes;
    Log("coordinator crashes");
    // A transaction under way is stored or not; what follows it is not sent.
    if (!outbox_.empty() && OneIn(2)) {
      for (const Out& out : outbox_) Store(out.effects);
    }
    outbox_.clear();
    coordinator_.reset();
    sessions_.clear();
    ++coordinator_epoch_;
    for (Worker& worker : workers_) BreakStream(worker);
    queue_.After(healing_ ? Between(100, 500) : Between(100, 9000), [this] {
      if (!coordinator_.has_value()) StartCoordinator();
    });
  }

  // Effects wait for the group commit; then sends, in order.
  struct Out {
    Effects effects;
    std::function<void()> reply;
  };

  void Carry(Effects effects, std::function<void()> reply = nullptr) {
    outbox_.push_back({std::move(effects), std::move(reply)});
    if (commit_scheduled_ == coordinator_epoch_) return;
    commit_scheduled_ = coordinator_epoch_;
    queue_.After(Between(0, 20), [this, epoch = coordinator_epoch_] {
      if (epoch != coordinator_epoch_) return;
      commit_scheduled_ = 0;
      std::vector<Out> batch;
      batch.swap(outbox_);
      for (const Out& out : batch) Store(out.effects);
      for (Out& out : batch) {
        for (Effect& effect : out.effects) SendOut(effect);
        if (out.reply) out.reply();
      }
      TickCoordinatorLater();
    });
  }

  void Store(const Effects& effects) {
    for (const Effect& effect : effects) {
      if (const auto* persist = std::get_if<PersistJob>(&effect)) {
        const JobRecord& to = persist->record;
        auto it = store_.find(to.id);
        if (it != store_.end()) {
          const JobRecord& from = it->second;
          if (to.generation < from.generation) {
            Violation("a generation number goes back");
          }
          if (IsFinal(from.state) && to.state != from.state) {
            Violation(absl::StrCat("jobs/", to.id.value, " leaves ",
                                   JobStateName(from.state)));
          }
          if (to.generation == from.generation && from.generation > 0 &&
              to.members != from.members) {
            Violation("one generation, two memberships");
          }
        }
        if (to.generation > 0 &&
            (it == store_.end() || it->second.generation < to.generation)) {
          ++result_.generations;
        }
        CheckPlaces(to);
        store_[to.id] = to;
        if (IsFinal(to.state)) ended_[to.id] = to.state;
      } else if (const auto* erase = std::get_if<EraseJob>(&effect)) {
        ++result_.erased;
        if (ended_.count(erase->job) == 0) {
          Violation("a job that has not ended is forgotten");
        }
        store_.erase(erase->job);
      }
    }
  }

  static bool IsActive(const JobRecord& record) {
    return record.state == JobState::kForming ||
           record.state == JobState::kRunning;
  }

  // A worker has a place in one active generation at most; its class is the
  // job's.
  void CheckPlaces(const JobRecord& to) {
    if (!IsActive(to)) return;
    for (const auto& [id, other] : store_) {
      if (id == to.id || !IsActive(other)) continue;
      for (const WorkerId& member : to.members) {
        if (std::count(other.members.begin(), other.members.end(), member)) {
          Violation(absl::StrCat(member.value, " has a place in two jobs"));
        }
      }
    }
    for (const WorkerId& member : to.members) {
      if (ClassOf(std::stoul(member.value.substr(1))) != to.numeric_class) {
        Violation(absl::StrCat(member.value, " is of another class"));
      }
    }
  }

  std::string ClassOf(size_t w) const {
    return absl::StrCat("cpu/", w % options_.class_count);
  }

  void SendOut(const Effect& effect) {
    if (const auto* welcome = std::get_if<SendWelcome>(&effect)) {
      Down(welcome->session, welcome->welcome);
    } else if (const auto* command = std::get_if<SendCommand>(&effect)) {
      const GenerationKey& key = KeyOf(command->command.body);
      auto it = store_.find(key.job);
      // Of a job that is forgotten one may still be told to let go.
      if (it == store_.end()
              ? !std::holds_alternative<Release>(command->command.body)
              : it->second.generation < key.generation) {
        Violation("a command was sent for what is not stored");
      }
      if (std::holds_alternative<CommitOutput>(command->command.body)) {
        ++commits_sent_[key.job];
      }
      Down(command->session, command->command);
    } else if (const auto* close = std::get_if<CloseSession>(&effect)) {
      auto stream = FindStream(close->session);
      if (stream != nullptr) {
        CloseFromCoordinator(stream, close->status);
      }
    } else if (const auto* worker = std::get_if<PublishWorker>(&effect)) {
      const WorkerView& view = worker->view;
      if (view.contact == Contact::kCutOff) ++result_.cut_off;
      if (!options_.log) return;
      const auto& held = view.status.held;
      Log(absl::StrCat(
          "  ", view.id.value, " contact=", static_cast<int>(view.contact),
          " trainer_ready=", view.status.trainer_ready,
          view.assigned.has_value()
              ? absl::StrCat(" assigned=", view.assigned->job.value, "/",
                             view.assigned->generation)
              : "",
          held.has_value()
              ? absl::StrCat(" holds=", held->key.job.value, "/",
                             held->key.generation, " ", PhaseName(held->phase))
              : ""));
    } else if (const auto* job = std::get_if<PublishJob>(&effect)) {
      const JobRecord& record = job->record;
      published_[record.id] = record;
      if (!options_.log) return;
      Log(absl::StrCat(
          "  jobs/", record.id.value, " ", JobStateName(record.state),
          " generation=", record.generation,
          " steps=", record.committed_step_count, " ", record.reason));
    }
  }

  void TickCoordinatorLater() {
    if (!coordinator_.has_value()) return;
    const Instant at = coordinator_->NextDeadline();
    if (at == InfiniteFuture() || at == coordinator_tick_at_) return;
    coordinator_tick_at_ = at;
    queue_.At(at, [this, at, epoch = coordinator_epoch_] {
      if (epoch != coordinator_epoch_ || coordinator_tick_at_ != at) return;
      coordinator_tick_at_ = InfiniteFuture();
      Effects effects;
      coordinator_->Tick(Now(), effects);
      if (!(queue_.now() < coordinator_->NextDeadline())) {
        Violation("Tick() leaves a deadline that is overdue");
      }
      Carry(std::move(effects));
    });
  }

  // ----------------------------------------------------------- network

  std::shared_ptr<Stream> FindStream(SessionId session) {
    auto it = sessions_.find(session);
    return it == sessions_.end() ? nullptr : it->second;
  }

  Instant Arrival(Instant& last) {
    Instant at = queue_.now() + (OneIn(50) ? Between(0, 400) : Between(0, 10));
    if (at < last) at = last;
    last = at;
    return at;
  }

  void Down(SessionId session, Downward message) {
    std::shared_ptr<Stream> stream = FindStream(session);
    if (stream == nullptr || !stream->coordinator_open) return;
    const size_t w = stream->worker;
    queue_.At(Arrival(stream->down_last), [this, w, stream, message] {
      Worker& worker = workers_[w];
      if (!stream->open || stream->broken || worker.stream != stream ||
          worker.partitioned || !worker.agent.has_value()) {
        return;
      }
      AgentEffects effects;
      if (const auto* welcome = std::get_if<Welcome>(&message)) {
        worker.agent->OnWelcome(queue_.now(), *welcome, effects);
      } else if (const auto* command = std::get_if<Command>(&message)) {
        worker.agent->OnCommand(queue_.now(), *command, effects);
      } else {
        worker.agent->OnReportsAck(queue_.now(), std::get<int64_t>(message),
                                   effects);
      }
      Carry(w, std::move(effects));
    });
  }

  void Up(size_t w, Upward message) {
    std::shared_ptr<Stream> stream = workers_[w].stream;
    if (stream == nullptr || !stream->open) return;
    queue_.At(Arrival(stream->up_last), [this, w, stream, message] {
      // A crashed worker's last messages may still arrive.
      if (!stream->coordinator_open || stream->broken ||
          workers_[w].partitioned || !coordinator_.has_value() ||
          stream->epoch != coordinator_epoch_) {
        return;
      }
      if (const auto* hello = std::get_if<Hello>(&message)) {
        stream->session = {++last_session_};
        sessions_[stream->session] = stream;
        Effects effects;
        const absl::Status status = coordinator_->OnHello(
            Now(), stream->session, *hello, absl::StrCat("sim:", w), effects);
        Carry(std::move(effects));
        if (!status.ok()) CloseFromCoordinator(stream, status);
      } else {
        stream->last_up = message;
        Hear(stream, message);
      }
    });
  }

  // What the service does with a message after the hello.
  void Hear(const std::shared_ptr<Stream>& stream, const Upward& message) {
    Effects effects;
    if (const auto* status = std::get_if<WorkerStatus>(&message)) {
      coordinator_->OnStatus(Now(), stream->session, *status, effects);
      Carry(std::move(effects));
    } else {
      const auto& reports = std::get<SendReports>(message);
      for (const std::string& text : reports.reports) {
        const Report report = Report::Parse(text);
        coordinator_->OnStepsCommitted(Now(), stream->session, report.key,
                                       report.step + 1, effects);
      }
      const SessionId session = stream->session;
      const int64_t last = reports.first_sequence +
                           static_cast<int64_t>(reports.reports.size()) - 1;
      Carry(std::move(effects), [this, session, last] {
        if (!OneIn(20)) Down(session, last);
      });
    }
  }

  void CloseFromCoordinator(const std::shared_ptr<Stream>& stream,
                            const absl::Status& status) {
    if (!stream->coordinator_open) return;
    stream->coordinator_open = false;
    const size_t w = stream->worker;
    queue_.At(Arrival(stream->down_last), [this, w, stream, status] {
      WorkerSeesClose(w, stream, status);
    });
  }

  void WorkerSeesClose(size_t w, const std::shared_ptr<Stream>& stream,
                       const absl::Status& status) {
    Worker& worker = workers_[w];
    if (!stream->open || worker.stream != stream) return;
    stream->open = false;
    if (!worker.agent.has_value()) return;
    AgentEffects effects;
    worker.agent->OnStreamClosed(queue_.now(), status, effects);
    Carry(w, std::move(effects));
  }

  void CoordinatorSeesClose(const std::shared_ptr<Stream>& stream,
                            bool leaving) {
    if (!stream->coordinator_open) return;
    stream->coordinator_open = false;
    if (!coordinator_.has_value() || stream->epoch != coordinator_epoch_ ||
        stream->session.value == 0) {
      return;
    }
    Effects effects;
    coordinator_->OnSessionClosed(Now(), stream->session, leaving, effects);
    Carry(std::move(effects));
  }

  // Each side notices by itself, sooner or later; what is under way is lost.
  void BreakStream(Worker& worker) {
    std::shared_ptr<Stream> stream = worker.stream;
    if (stream == nullptr) return;
    ++result_.broken_streams;
    const size_t w = stream->worker;
    queue_.After(Between(0, 1500), [this, w, stream] {
      WorkerSeesClose(w, stream, absl::UnavailableError("broken"));
    });
    queue_.After(Between(0, 1500),
                 [this, stream] { CoordinatorSeesClose(stream, false); });
  }

  // Nothing arrives any more, and each end learns it from its keepalive, late.
  void BreakStreamSilently(Worker& worker) {
    std::shared_ptr<Stream> stream = worker.stream;
    if (stream == nullptr || stream->broken) return;
    ++result_.half_open;
    stream->broken = true;
    const size_t w = stream->worker;
    queue_.After(Between(0, 20000), [this, w, stream] {
      WorkerSeesClose(w, stream, absl::UnavailableError("keepalive"));
    });
    queue_.After(Between(0, 20000),
                 [this, stream] { CoordinatorSeesClose(stream, false); });
  }

  // ----------------------------------------------------------- workers

  void StartWorker(size_t w) {
    Worker& worker = workers_[w];
    ++worker.epoch;
    AgentOptions options;
    options.worker = worker.id;
    options.incarnation = {queue_.now().since_start / absl::Nanoseconds(1) + 1};
    options.device.numeric_class = ClassOf(w);
    options.name_taken_patience = absl::Seconds(3600);
    worker.agent = AgentCore::Create(options).value();
    worker.tick_at = InfiniteFuture();
    AgentEffects effects;
    worker.agent->Start(queue_.now(), effects);
    Log(absl::StrCat(worker.id.value, " starts"));
    Carry(w, std::move(effects));
  }

  void CrashWorker(size_t w) {
    Worker& worker = workers_[w];
    if (!worker.agent.has_value()) return;
    ++result_.worker_crashes;
    Log(absl::StrCat(worker.id.value, " crashes"));
    KillTrainerOf(w);
    worker.trainer.reset();
    worker.agent.reset();
    ++worker.epoch;
    BreakStream(worker);
    queue_.After(healing_ ? Between(100, 500) : Between(50, 12000), [this, w] {
      if (!workers_[w].agent.has_value()) StartWorker(w);
    });
  }

  // Its operator stops the daemon, which says good-bye, and starts another.
  void StopWorker(size_t w) {
    Worker& worker = workers_[w];
    if (!worker.agent.has_value()) return;
    ++result_.leaves;
    Log(absl::StrCat(worker.id.value, " leaves"));
    KillTrainerOf(w);
    worker.trainer.reset();
    worker.agent.reset();
    ++worker.epoch;
    if (std::shared_ptr<Stream> stream = worker.stream; stream != nullptr) {
      stream->open = false;
      // What was sent before arrives before.
      queue_.At(Arrival(stream->up_last), [this, w, stream] {
        if (!stream->broken && !workers_[w].partitioned) {
          CoordinatorSeesClose(stream, /*leaving=*/true);
        }
      });
    }
    queue_.After(healing_ ? Between(100, 500) : Between(50, 12000), [this, w] {
      if (!workers_[w].agent.has_value()) StartWorker(w);
    });
  }

  void Carry(size_t w, AgentEffects effects) {
    Worker& worker = workers_[w];
    for (AgentEffect& effect : effects) {
      if (std::holds_alternative<OpenStream>(effect)) {
        OpenStreamOf(w);
      } else if (auto* hello = std::get_if<SendHello>(&effect)) {
        Up(w, hello->hello);
      } else if (auto* status = std::get_if<SendStatus>(&effect)) {
        Up(w, status->status);
      } else if (auto* reports = std::get_if<SendReports>(&effect)) {
        Up(w, *reports);
      } else if (auto* spawn = std::get_if<SpawnTrainer>(&effect)) {
        SpawnTrainerOf(w, spawn->trainer);
      } else if (auto* kill = std::get_if<KillTrainer>(&effect)) {
        if (worker.trainer != nullptr && worker.trainer->id == kill->trainer) {
          KillTrainerOf(w);
        }
      } else if (auto* tell = std::get_if<TellTrainer>(&effect)) {
        Tell(w, *tell);
      } else if (auto* exit = std::get_if<Exit>(&effect)) {
        Violation(absl::StrCat(worker.id.value,
                               " must exit: ", exit->status.ToString()));
      }
    }
    TickWorkerLater(w);
  }

  void TickWorkerLater(size_t w) {
    Worker& worker = workers_[w];
    if (!worker.agent.has_value()) return;
    const Instant at = worker.agent->NextDeadline();
    if (at == InfiniteFuture() || at == worker.tick_at) return;
    worker.tick_at = at;
    queue_.At(at, [this, w, at, epoch = worker.epoch] {
      Worker& worker_now = workers_[w];
      if (worker_now.epoch != epoch || worker_now.tick_at != at) return;
      worker_now.tick_at = InfiniteFuture();
      AgentEffects effects;
      worker_now.agent->Tick(queue_.now(), effects);
      if (!(queue_.now() < worker_now.agent->NextDeadline())) {
        Violation("an agent's Tick() leaves a deadline that is overdue");
      }
      Carry(w, std::move(effects));
    });
  }

  void OpenStreamOf(size_t w) {
    Worker& worker = workers_[w];
    if (worker.stream != nullptr && worker.stream->open) {
      worker.stream->open = false;
      queue_.After(Between(0, 100), [this, stream = worker.stream] {
        CoordinatorSeesClose(stream, false);
      });
    }
    if (worker.stream != nullptr && worker.stream->last_up.has_value() &&
        OneIn(4)) {
      // What the old stream carried last arrives once more, late.
      queue_.After(Between(0, 2000), [this, old = worker.stream] {
        if (coordinator_.has_value() && old->epoch == coordinator_epoch_ &&
            !old->coordinator_open && old->session.value != 0) {
          ++result_.duplicates;
          Hear(old, *old->last_up);
        }
      });
    }
    auto stream = std::make_shared<Stream>();
    stream->worker = w;
    stream->epoch = coordinator_epoch_;
    stream->up_last = stream->down_last = queue_.now();
    worker.stream = stream;
    if (!coordinator_.has_value() || worker.partitioned) {
      queue_.After(Between(1, 50), [this, w, stream] {
        WorkerSeesClose(w, stream, absl::UnavailableError("refused"));
      });
    }
  }

  // ---------------------------------------------------------- trainers

  // What a trainer does later, unless it has died by then or moved on.
  void TrainerLater(size_t w, absl::Duration delay,
                    std::function<void(Trainer&)> what) {
    const Worker& worker = workers_[w];
    queue_.After(delay, [this, w, id = worker.trainer->id, epoch = worker.epoch,
                         what = std::move(what)] {
      Worker& worker_now = workers_[w];
      if (worker_now.epoch != epoch || worker_now.trainer == nullptr ||
          worker_now.trainer->id != id || !worker_now.trainer->alive) {
        return;
      }
      what(*worker_now.trainer);
    });
  }

  void SpawnTrainerOf(size_t w, TrainerId id) {
    Worker& worker = workers_[w];
    if (worker.trainer != nullptr && worker.trainer->alive) {
      Violation("two trainers on one device");
    }
    worker.trainer = std::make_unique<Trainer>();
    worker.trainer->id = id;
    TrainerLater(w, Between(20, 300), [this, w](Trainer& trainer) {
      AgentEffects effects;
      workers_[w].agent->OnTrainerReady(queue_.now(), trainer.id, effects);
      Carry(w, std::move(effects));
    });
  }

  void KillTrainerOf(size_t w) {
    Worker& worker = workers_[w];
    if (worker.trainer == nullptr || !worker.trainer->alive) return;
    ++result_.trainer_deaths;
    worker.trainer->alive = false;
    Log(absl::StrCat(worker.id.value, " trainer dies"));
    PeersNotice(*worker.trainer);
    queue_.After(Between(0, 20), [this, w, id = worker.trainer->id,
                                  epoch = worker.epoch] {
      Worker& worker_now = workers_[w];
      if (worker_now.epoch != epoch) return;
      AgentEffects effects;
      worker_now.agent->OnTrainerDied(queue_.now(), id, "signal 9", effects);
      Carry(w, std::move(effects));
    });
  }

  void Says(size_t w, Trainer& trainer) {
    AgentEffects effects;
    workers_[w].agent->OnTrainerHolds(queue_.now(), trainer.id, trainer.held,
                                      effects);
    Carry(w, std::move(effects));
  }

  void Fail(size_t w, Trainer& trainer, Failure failure) {
    trainer.held->phase = Phase::kFailed;
    trainer.held->failure = std::move(failure);
    PeersNotice(trainer);
    Says(w, trainer);
  }

  // The other ranks' collectives break.
  void PeersNotice(const Trainer& gone) {
    if (!gone.held.has_value()) return;
    const GenerationKey key = gone.held->key;
    const int rank = gone.held->rank;
    for (size_t w = 0; w < workers_.size(); ++w) {
      Trainer* trainer = workers_[w].trainer.get();
      if (trainer == nullptr || trainer == &gone || !trainer->alive ||
          !trainer->held.has_value() || trainer->held->key != key) {
        continue;
      }
      TrainerLater(w, Between(1, 30), [this, w, key, rank](Trainer& t) {
        if (!t.held.has_value() || t.held->key != key) return;
        if (t.held->phase != Phase::kTraining &&
            t.held->phase != Phase::kConnecting) {
          return;
        }
        Fail(w, t,
             {.cause = Failure::Cause::kPeer,
              .code = absl::StatusCode::kUnavailable,
              .message = absl::StrCat("lost rank ", rank),
              .peer_rank = rank});
      });
    }
  }

  void Tell(size_t w, const TellTrainer& tell) {
    Trainer* trainer = workers_[w].trainer.get();
    if (trainer == nullptr || !trainer->alive || trainer->id != tell.trainer) {
      return;
    }
    TrainerLater(
        w, Between(0, 5), [this, w, command = tell.command](Trainer& t) {
          if (t.deaf) return;
          if (const auto* prepare = std::get_if<Prepare>(&command)) {
            OnPrepare(w, t, *prepare);
          } else if (!t.held.has_value() || t.held->key != KeyOf(command)) {
            return;
          } else if (const auto* start = std::get_if<struct Start>(&command)) {
            OnStart(w, t, *start);
          } else if (std::holds_alternative<Release>(command)) {
            t.held->phase = Phase::kAborting;
            PeersNotice(t);
            TrainerLater(
                w, Between(1, 200),
                [this, w, key = t.held->key](Trainer& later) {
                  if (!later.held.has_value() || later.held->key != key) return;
                  later.held.reset();
                  Says(w, later);
                });
          } else if (t.held->phase == Phase::kOutputReady) {
            TrainerLater(w, Between(1, 100), [this, w](Trainer& later) {
              if (!later.held.has_value() ||
                  later.held->phase != Phase::kOutputReady) {
                return;
              }
              outputs_.insert(later.held->key.job);
              later.held->phase = Phase::kFinished;
              Says(w, later);
            });
          }
        });
  }

  std::string Address(const Trainer& from, size_t w, int to) const {
    return absl::StrCat(workers_[w].id.value, "#", workers_[w].epoch, ".",
                        from.id.value, ">", to, "@", from.held->key.generation);
  }

  void OnPrepare(size_t w, Trainer& trainer, const Prepare& prepare) {
    if (trainer.held.has_value()) {
      Violation("Prepare while the trainer holds a generation");
      return;
    }
    if (prepare.workers[prepare.rank] != workers_[w].id) {
      Violation("Prepare for another worker");
    }
    trainer.held.emplace();
    trainer.held->key = prepare.key;
    trainer.held->rank = prepare.rank;
    trainer.members = prepare.workers;
    TrainerLater(w, Between(5, 300), [this, w, key = prepare.key](Trainer& t) {
      if (!t.held.has_value() || t.held->key != key ||
          t.held->phase != Phase::kPreparing) {
        return;
      }
      if (t.held->rank == 0 && outputs_.count(key.job) > 0) {
        t.held->phase = Phase::kFinished;
      } else {
        t.held->phase = Phase::kJoined;
        for (size_t to = 0; to < t.members.size(); ++to) {
          t.held->addresses.push_back(Address(t, w, static_cast<int>(to)));
        }
        if (t.held->rank == 0) {
          t.held->nonce = absl::StrCat("nonce of ", key.generation);
        }
        t.held->max_steps = StepsOf(key.job);
      }
      Says(w, t);
    });
  }

  int64_t StepsOf(const JobId& id) const {
    auto it = store_.find(id);
    for (const JobPlan& plan : jobs_) {
      if (it != store_.end() && plan.request_id == it->second.request_id) {
        return plan.steps;
      }
    }
    return 1;
  }

  void OnStart(size_t w, Trainer& trainer, const struct Start& start) {
    // Every rank of a generation must be told the same.
    auto [it, first] = starts_.try_emplace(start.key, start);
    if (!first && (it->second.micro_batches != start.micro_batches ||
                   it->second.nonce != start.nonce ||
                   it->second.first_step != start.first_step ||
                   it->second.plan_version != start.plan_version)) {
      Violation("two ranks were given different assignments");
    }
    int64_t next = 0;
    for (const MicroBatchRange& range : start.micro_batches) {
      if (range.first != next)
        Violation("micro-batches overlap or are missing");
      next += range.count;
    }
    if (next != store_[start.key.job].needs.micro_batches) {
      Violation("an assignment does not cover the step");
    }
    if (trainer.held->phase != Phase::kJoined) return;
    trainer.held->phase = Phase::kConnecting;
    for (size_t rank = 0; rank < trainer.members.size(); ++rank) {
      if (trainer.members[rank] == workers_[w].id) continue;
      const size_t peer = std::stoul(trainer.members[rank].value.substr(1));
      const Trainer* other = workers_[peer].trainer.get();
      const bool there = other != nullptr && other->alive &&
                         other->held.has_value() &&
                         other->held->key == start.key;
      if (!there || start.peer_addresses[rank] !=
                        Address(*other, peer, trainer.held->rank)) {
        Fail(w, trainer,
             {.cause = Failure::Cause::kPeer,
              .code = absl::StatusCode::kUnavailable,
              .message = absl::StrCat("cannot reach rank ", rank),
              .peer_rank = static_cast<int>(rank)});
        return;
      }
    }
    Says(w, trainer);
    const GenerationKey key = start.key;
    TrainerLater(w, Between(5, 50), [this, key](Trainer&) { Advance(key); });
  }

  // All ranks of a generation, if they are there and alive; else empty.
  std::vector<std::pair<size_t, Trainer*>> RanksOf(const GenerationKey& key) {
    std::vector<std::pair<size_t, Trainer*>> ranks;
    for (size_t w = 0; w < workers_.size(); ++w) {
      Trainer* t = workers_[w].trainer.get();
      if (t != nullptr && t->alive && t->held.has_value() &&
          t->held->key == key) {
        ranks.push_back({w, t});
      }
    }
    if (ranks.empty() || ranks.size() != ranks[0].second->members.size()) {
      return {};
    }
    return ranks;
  }

  // Connects, takes a step, or ends, once all ranks are there for it.
  void Advance(const GenerationKey& key) {
    auto ranks = RanksOf(key);
    if (ranks.empty()) return;
    bool all_connecting = true;
    bool all_training = true;
    for (auto& [w, t] : ranks) {
      all_connecting &= t->held->phase == Phase::kConnecting;
      all_training &= t->held->phase == Phase::kTraining;
    }
    if (all_connecting) {
      for (auto& [w, t] : ranks) {
        t->held->phase = Phase::kTraining;
        Says(w, *t);
      }
    } else if (all_training) {
      const int64_t step = ranks[0].second->held->committed_step_count;
      const bool last = step + 1 >= StepsOf(key.job);
      for (auto& [w, t] : ranks) {
        if (t->held->committed_step_count != step) {
          Violation("ranks of one generation are at different steps");
        }
        t->held->committed_step_count = step + 1;
        AgentEffects effects;
        workers_[w].agent->OnStepReport(queue_.now(), t->id, step,
                                        Report{key, step}.Serialize(), effects);
        Carry(w, std::move(effects));
        if (last) {
          t->held->phase = Phase::kOutputReady;
          Says(w, *t);
        }
      }
      if (last) return;
    } else {
      return;
    }
    queue_.After(Between(50, 400), [this, key] { Advance(key); });
  }

  // -------------------------------------------------------------- jobs

  void PlanJob(int i) {
    JobPlan plan;
    plan.request_id = absl::StrCat("request-", i);
    plan.needs.priority = static_cast<int>(Below(3));
    const int most = (options_.worker_count + options_.class_count - 1) /
                     options_.class_count;
    plan.impossible = OneIn(10);
    plan.needs.min_workers = plan.impossible
                                 ? most + 1 + static_cast<int>(Below(2))
                                 : 1 + static_cast<int>(Below(most));
    plan.needs.max_workers =
        plan.needs.min_workers + static_cast<int>(Below(3));
    plan.needs.micro_batches =
        plan.needs.min_workers + static_cast<int>(Below(6));
    plan.needs.failures_max = 1'000'000;
    plan.needs.output_directory = absl::StrCat("/out/", i);
    plan.steps = 5 + Below(40);
    jobs_.push_back(plan);
    queue_.After(Between(0, options_.fault_seconds * 500),
                 [this, i] { Submit(i); });
    if (OneIn(5)) {
      queue_.After(Between(0, options_.fault_seconds * 1000),
                   [this, i] { Cancel(i); });
    }
  }

  // When those that ended are forgotten, one that asks again gets a new job.
  bool MayAskAgain() const { return options_.finished_job_max > 1000; }

  // As a client does: again and again until it is answered.
  void Submit(int i) {
    JobPlan& plan = jobs_[i];
    if (plan.id.has_value() && !(MayAskAgain() && OneIn(4))) return;
    queue_.After(Between(200, 3000), [this, i] {
      if (!jobs_[i].id.has_value()) Submit(i);
    });
    if (!coordinator_.has_value()) return;
    Effects effects;
    const absl::StatusOr<JobId> id = coordinator_->SubmitJob(
        Now(),
        {.id = JobId{absl::StrCat("j", ++last_job_)},
         .request_id = plan.request_id,
         .spec_digest = plan.request_id,
         .spec = std::make_shared<const std::string>("spec"),
         .needs = plan.needs},
        effects);
    if (!id.ok()) {
      Violation(absl::StrCat("submission refused: ", id.status().ToString()));
      return;
    }
    const bool answer_lost = OneIn(4) && !healing_;
    Carry(std::move(effects), [this, i, id = *id, answer_lost] {
      if (answer_lost) return;
      JobPlan& known = jobs_[i];
      if (known.id.has_value() && *known.id != id) {
        Violation("one request_id, two jobs");
      }
      known.id = id;
    });
  }

  // Likewise: until it is answered; sometimes once more.
  void Cancel(int i) {
    JobPlan& plan = jobs_[i];
    queue_.After(Between(200, 3000), [this, i] {
      if (!jobs_[i].cancel_answered || OneIn(4)) Cancel(i);
    });
    if (!coordinator_.has_value() || !plan.id.has_value()) return;
    Effects effects;
    const absl::Status status =
        coordinator_->CancelJob(Now(), *plan.id, "", effects);
    const bool answer_lost = OneIn(4) && !healing_;
    Carry(std::move(effects), [this, i, status, answer_lost] {
      if (answer_lost) return;
      JobPlan& known = jobs_[i];
      if (known.cancel_acknowledged && !status.ok() &&
          !absl::IsNotFound(status)) {
        Violation("a cancelled job cannot be cancelled again");
      }
      known.cancel_answered = true;
      if (status.ok()) known.cancel_acknowledged = true;
    });
  }

  // ------------------------------------------------------------ faults

  void ScheduleFault() {
    queue_.After(Between(100, 6000), [this] {
      if (healing_) return;
      const auto w = static_cast<size_t>(Below(workers_.size()));
      Worker& worker = workers_[w];
      switch (Below(9)) {
        case 0:
          CrashCoordinator();
          break;
        case 1:
          CrashWorker(w);
          break;
        case 2:
          KillTrainerOf(w);
          break;
        case 3:
          BreakStream(worker);
          break;
        case 4:
          if (worker.partitioned) break;
          worker.partitioned = true;
          Log(absl::StrCat(worker.id.value, " is partitioned"));
          BreakStream(worker);
          queue_.After(Between(100, 15000),
                       [this, w] { workers_[w].partitioned = false; });
          break;
        case 5:
          if (worker.trainer != nullptr) worker.trainer->deaf = true;
          break;
        case 6:
          // The job's network hiccups: one rank loses its connection.
          if (worker.trainer != nullptr && worker.trainer->alive &&
              worker.trainer->held.has_value() &&
              worker.trainer->held->phase == Phase::kTraining) {
            Fail(w, *worker.trainer,
                 {.cause = Failure::Cause::kPeer,
                  .code = absl::StatusCode::kUnavailable,
                  .message = "connection reset"});
          }
          break;
        case 7:
          StopWorker(w);
          break;
        case 8:
          BreakStreamSilently(worker);
          break;
      }
      ScheduleFault();
    });
  }

  void Heal() {
    Log("---- no more faults");
    for (size_t w = 0; w < workers_.size(); ++w) {
      workers_[w].partitioned = false;
      // A deaf trainer that holds nothing is never killed by its agent: only
      // one that was told to do something is noticed.
      if (workers_[w].trainer != nullptr) workers_[w].trainer->deaf = false;
      if (!workers_[w].agent.has_value()) StartWorker(w);
    }
    if (!coordinator_.has_value()) StartCoordinator();
    // A trainer that was told something while deaf is stuck for good.
    for (size_t w = 0; w < workers_.size(); ++w) KillTrainerOf(w);
  }

  // ------------------------------------------------------------ checks

  void Check() {
    ++result_.events;
    for (const JobPlan& plan : jobs_) {
      if (!plan.id.has_value()) continue;
      const auto end = ended_.find(*plan.id);
      if (end == ended_.end()) {
        if (store_.count(*plan.id) == 0) {
          Violation("an acknowledged job is gone");
        }
        if (plan.cancel_acknowledged) {
          Violation("an acknowledged cancellation is gone");
        }
        continue;
      }
      if (plan.cancel_acknowledged && end->second != JobState::kCancelled) {
        Violation("an acknowledged cancellation is gone");
      }
      if (end->second == JobState::kCompleted &&
          outputs_.count(*plan.id) == 0) {
        Violation("a job is COMPLETED without its output");
      }
    }
    for (const JobId& id : outputs_) {
      if (commits_sent_[id] == 0) {
        Violation("an output was committed without the coordinator's word");
      }
    }
  }

  bool AllEnded() const {
    for (const JobPlan& plan : jobs_) {
      if (!plan.id.has_value()) return false;
      if (!plan.impossible && ended_.count(*plan.id) == 0) return false;
    }
    return true;
  }

  void CheckProgress() {
    for (const JobPlan& plan : jobs_) {
      if (!plan.id.has_value()) {
        Violation("a submission was never answered");
        continue;
      }
      const auto end = ended_.find(*plan.id);
      const JobState state =
          end != ended_.end() ? end->second : store_[*plan.id].state;
      const std::string& reason = published_[*plan.id].reason;
      const std::string what = absl::StrCat("jobs/", plan.id->value, ": ",
                                            JobStateName(state), ": ", reason);
      if (state == JobState::kCancelled) {
        ++result_.cancelled;
      } else if (plan.impossible) {
        ++result_.waiting;
        if (state != JobState::kQueued ||
            !absl::StrContains(
                reason,
                absl::StrCat("needs ", plan.needs.min_workers, " workers"))) {
          Violation("does not wait for what it needs: " + what);
        }
      } else if (state == JobState::kCompleted) {
        ++result_.completed;
      } else {
        Violation("did not end: " + what);
      }
    }
  }

  const Options options_;
  std::mt19937_64 rng_;
  EventQueue queue_;
  Result result_;
  bool healing_ = false;

  std::optional<Coordinator> coordinator_;
  int64_t coordinator_epoch_ = 0;
  Instant coordinator_tick_at_ = InfiniteFuture();
  int64_t last_session_ = 0;
  std::vector<Out> outbox_;
  int64_t commit_scheduled_ = 0;  // In this epoch; 0 if not.

  // What survives the coordinator.
  int64_t stored_incarnation_ = 0;
  std::map<JobId, JobRecord> store_;
  std::map<JobId, JobState> ended_;  // Also of those forgotten since.

  std::map<SessionId, std::shared_ptr<Stream>> sessions_;  // Of this epoch.
  std::vector<Worker> workers_;
  std::vector<JobPlan> jobs_;
  int64_t last_job_ = 0;

  std::set<JobId> outputs_;  // Committed.
  std::map<JobId, int> commits_sent_;
  std::map<GenerationKey, struct Start> starts_;
  std::map<JobId, JobRecord> published_;
};

}  // namespace

Result RunSimulation(const Options& options) {
  return Simulation(options).Run();
}

}  // namespace lockstep::simulation
