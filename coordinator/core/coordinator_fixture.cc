#include "coordinator/core/coordinator_fixture.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace lockstep {

void PrintTo(JobState state, std::ostream* out) { *out << JobStateName(state); }
void PrintTo(Phase phase, std::ostream* out) { *out << PhaseName(phase); }
void PrintTo(Contact contact, std::ostream* out) {
  static const char* const kNames[] = {"attached", "suspect", "cut off",
                                       "lost"};
  *out << kNames[static_cast<int>(contact)];
}

CoordinatorFixture::CoordinatorFixture() {
  options_.lease = absl::Seconds(4);
  options_.forming_timeout = absl::Minutes(2);
  options_.step_bound = absl::Seconds(30);
  options_.reattach_window = absl::Seconds(10);
  options_.worker_backoff = absl::Seconds(1);
  options_.worker_backoff_max = absl::Seconds(10);
  Restart();
}

CoordinatorFixture::~CoordinatorFixture() = default;

void CoordinatorFixture::Restart(CoordinatorOptions options) {
  options.incarnation = {options_.incarnation.value + 1};
  options_ = options;
  shell_.Crash();
  std::vector<JobRecord> stored;
  // In any order.
  for (const auto& [id, record] : shell_.store()) {
    stored.insert(stored.begin(), record);
  }
  effects_.clear();
  core_ = Coordinator::Create(options_, now(), stored, effects_).value();
  shell_.Carry(effects_, *core_);
}

void CoordinatorFixture::Tick() {
  CallVoid([&] { core_->Tick(now(), effects_); });
  EXPECT_LT(now_, core_->NextDeadline());
}

void CoordinatorFixture::PassTicking(absl::Duration duration) {
  const Instant end = now_ + duration;
  while (core_->NextDeadline() <= end) {
    now_ = std::max(now_, core_->NextDeadline());
    Tick();
  }
  now_ = end;
  Tick();
}

CoordinatorFixture::Player& CoordinatorFixture::Introduce(
    const std::string& name, const std::string& numeric_class) {
  auto& player = players_[WorkerId{name}];
  player = std::make_unique<Player>(this, name, numeric_class);
  return *player;
}

CoordinatorFixture::Player& CoordinatorFixture::Attach(
    const std::string& name, const std::string& numeric_class) {
  return Introduce(name, numeric_class).Hello();
}

std::vector<CoordinatorFixture::Player*> CoordinatorFixture::MembersOf(
    const JobId& job) {
  std::vector<Player*> members;
  for (const WorkerId& id : Job(job).members) members.push_back(&player(id));
  return members;
}

absl::StatusOr<JobId> CoordinatorFixture::TrySubmit(
    const JobRequest& request, const std::string& request_id,
    const std::string& spec) {
  const JobId id{absl::StrCat("j", ++last_job_)};
  JobNeeds needs;
  needs.priority = request.priority;
  needs.min_workers = request.min_workers;
  needs.max_workers = std::max(request.min_workers, request.max_workers);
  needs.micro_batches = request.micro_batches;
  needs.failures_max = request.failures_max;
  needs.output_directory = request.output_directory.empty()
                               ? absl::StrCat("/out/", id.value)
                               : request.output_directory;
  needs.bfloat16 = request.bfloat16;
  needs.zero_stage = request.zero_stage;
  needs.memory = request.memory;
  return Call([&] {
    return core_->SubmitJob(now(),
                            {.id = id,
                             .request_id = request_id,
                             .spec_digest = absl::StrCat("digest of ", spec),
                             .spec = std::make_shared<const std::string>(spec),
                             .needs = needs,
                             .plan = "the plan"},
                            effects_);
  });
}

JobId CoordinatorFixture::Submit(const JobRequest& request) {
  const std::string name = absl::StrCat("request-", last_job_ + 1);
  return TrySubmit(request, name, absl::StrCat("spec of ", name)).value();
}

absl::Status CoordinatorFixture::Cancel(const JobId& job,
                                        const std::string& reason) {
  return Call([&] { return core_->CancelJob(now(), job, reason, effects_); });
}

void CoordinatorFixture::AllJoin(const JobId& job) {
  for (Player* p : MembersOf(job)) p->Obeys().Joins();
}

void CoordinatorFixture::AllTrain(const JobId& job) {
  AllJoin(job);
  for (Player* p : MembersOf(job)) p->Obeys().Is(Phase::kTraining);
  EXPECT_EQ(Job(job).state, JobState::kRunning);
}

void CoordinatorFixture::AllReady(const JobId& job) {
  AllTrain(job);
  for (Player* p : MembersOf(job)) p->Is(Phase::kOutputReady);
}

// ------------------------------------------------------------------- Player

using Player = CoordinatorFixture::Player;

Player::Player(CoordinatorFixture* fixture, const std::string& name,
               const std::string& numeric_class)
    : fixture_(fixture), id_{name} {
  status.trainer_ready = true;
  device.kind = "cpu";
  device.numeric_class = numeric_class;
  device.has_bfloat16 = absl::StrContains(numeric_class, "bf16");
  device.host = absl::StrCat("host-of-", name);
  device.process_id = 42;
}

struct Hello Player::NextHello() {
  return {.worker = id_,
          .incarnation = incarnation,
          .stream = ++stream_,
          .device = device,
          .status = status,
          .coordinator_incarnation = met};
}

absl::Status Player::TryHello(const struct Hello& hello) {
  CoordinatorFixture& f = *fixture_;
  const SessionId session{++f.last_session_};
  f.shell_.Open(session);
  const absl::Status result = f.Call([&] {
    return f.core_->OnHello(f.now(), session, hello,
                            absl::StrCat("peer-of-", id_.value), f.effects_);
  });
  EXPECT_EQ(f.shell_.stream(session).welcome.has_value(), result.ok());
  if (result.ok()) session_ = session;
  return result;
}

Player& Player::Hello() {
  const absl::Status result = TryHello(NextHello());
  EXPECT_TRUE(result.ok()) << result;
  if (met < fixture_->options_.incarnation) status.applied_sequence = 0;
  met = fixture_->options_.incarnation;
  return *this;
}

Player& Player::SaysOn(SessionId session, const WorkerStatus& said) {
  CoordinatorFixture& f = *fixture_;
  f.CallVoid([&] { f.core_->OnStatus(f.now(), session, said, f.effects_); });
  return *this;
}

Player& Player::Says(const WorkerStatus& said) {
  return SaysOn(session_, said);
}

Player& Player::Beat() { return Says(status); }

Player& Player::Breaks() {
  CoordinatorFixture& f = *fixture_;
  f.CallVoid(
      [&] { f.core_->OnSessionClosed(f.now(), session_, false, f.effects_); });
  return *this;
}

Player& Player::Leaves() {
  CoordinatorFixture& f = *fixture_;
  f.CallVoid(
      [&] { f.core_->OnSessionClosed(f.now(), session_, true, f.effects_); });
  return *this;
}

Player& Player::StartsAnew() {
  ++incarnation.value;
  stream_ = 0;
  status = {};
  status.trainer_ready = true;
  met = {};
  return *this;
}

Player& Player::Receives() {
  for (const Command& command : stream().commands) {
    if (command.sequence <= status.applied_sequence) continue;
    status.applied_sequence = command.sequence;
    const GenerationKey& key = KeyOf(command.body);
    auto& held = status.held;
    if (const auto* prepare = std::get_if<Prepare>(&command.body)) {
      if (held.has_value()) continue;
      held.emplace();
      held->key = key;
      held->rank = prepare->rank;
      peers_ = prepare->workers;
    } else if (!held.has_value() || held->key != key) {
      continue;
    } else if (std::holds_alternative<Start>(command.body)) {
      held->phase = Phase::kConnecting;
    } else if (std::holds_alternative<CommitOutput>(command.body)) {
      held->phase = Phase::kFinished;
    } else {
      held.reset();
    }
  }
  return *this;
}

Player& Player::Joins() {
  HeldGeneration& held = status.held.value();
  held.phase = Phase::kJoined;
  held.addresses.clear();
  for (size_t to = 0; to < peers_.size(); ++to) {
    held.addresses.push_back(absl::StrCat(id_.value, ">", to));
  }
  if (held.rank == 0) held.nonce = absl::StrCat("nonce/", held.key.generation);
  return Beat();
}

Player& Player::Is(Phase phase) {
  status.held.value().phase = phase;
  return Beat();
}

Player& Player::Fails(Failure::Cause cause, const std::string& message) {
  HeldGeneration& held = status.held.value();
  held.phase = Phase::kFailed;
  held.failure = Failure{.cause = cause,
                         .code = absl::StatusCode::kUnavailable,
                         .message = message};
  return Beat();
}

Player& Player::Commits(int64_t committed_step_count) {
  CoordinatorFixture& f = *fixture_;
  if (status.held.has_value()) {
    status.held->committed_step_count =
        std::max(status.held->committed_step_count, committed_step_count);
  }
  f.CallVoid([&] {
    f.core_->OnStepsCommitted(f.now(), session_, status.held.value().key,
                              committed_step_count, f.effects_);
  });
  return *this;
}

std::vector<std::string> Player::commands() const {
  std::vector<std::string> texts;
  for (const Command& command : stream().commands) {
    static const char* const kNames[] = {"Prepare", "Start", "Release",
                                         "CommitOutput"};
    texts.push_back(absl::StrCat(kNames[command.body.index()], " ",
                                 KeyOf(command.body).generation));
  }
  return texts;
}

}  // namespace lockstep
