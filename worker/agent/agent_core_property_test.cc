// The agent's core under random events.

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/agent/agent_core.h"
#include "worker/agent/agent_core_fixture.h"

namespace lockstep {
namespace {

// Random events of a small world (trainers that obey, hang and die; streams
// that break; a coordinator that restarts, repeats itself and acknowledges what
// it likes) against what must hold whatever happens.  Then the world behaves,
// and all must be well again.  Replay a failure with TEST_SEED=<n>.
class World {
 public:
  explicit World(uint64_t seed) : rng_(seed) {
    AgentOptions options = Options();
    options.report_count_max = 8;
    options.report_batch_max = 3;
    options.restart_backoff_max = absl::Seconds(2);
    // The random part must not end the daemon.
    options.name_taken_patience = absl::InfiniteDuration();
    core_.emplace(AgentCore::Create(options).value());
  }

  void Begin() {
    AgentEffects effects;
    core_->Start(now_, effects);
    Carry(effects);
  }

  void RandomEvent() {
    now_ = now_ + absl::Milliseconds(Below(Below(8) == 0 ? 9000 : 300));
    AgentEffects effects;
    switch (Below(11)) {
      case 0:
        core_->Tick(now_, effects);
        Carry(effects);
        ASSERT_GT(core_->NextDeadline(), now_);
        return;
      case 1:
        if (stream_open_ && !welcomed_) {
          Welcome(effects);
        }
        break;
      case 2:
        if (stream_open_) {
          stream_open_ = false;
          const absl::StatusCode codes[] = {absl::StatusCode::kUnavailable,
                                            absl::StatusCode::kAborted,
                                            absl::StatusCode::kAlreadyExists};
          core_->OnStreamClosed(now_, absl::Status(codes[Below(3)], ""),
                                effects);
        }
        break;
      case 3:
        if (Below(4) == 0) {  // The coordinator starts again.
          ++coordinator_;
          log_.clear();
          if (stream_open_) {
            stream_open_ = false;
            core_->OnStreamClosed(now_, absl::UnavailableError(""), effects);
          }
        }
        break;
      case 4:
      case 5:
        if (stream_open_ && welcomed_) {
          if (!log_.empty() && Below(4) == 0) {  // A repetition.
            core_->OnCommand(now_, log_[Below(log_.size())], effects);
          } else {
            log_.push_back(
                RandomCommand(static_cast<int64_t>(log_.size()) + 1));
            core_->OnCommand(now_, log_.back(), effects);
          }
        }
        break;
      case 6:
        if (stream_open_ && welcomed_ && last_sent_ > 0) {
          acked_reports_ = std::max(
              acked_reports_, static_cast<int64_t>(Below(
                                  static_cast<uint64_t>(last_sent_) + 1)));
          core_->OnReportsAck(now_, acked_reports_, effects);
        }
        break;
      case 7:
        core_->OnTrainerReady(now_, SomeTrainer(), effects);
        break;
      case 8: {
        std::optional<HeldGeneration> held;
        if (Below(2) == 0) {
          held = Held({{"j"}, static_cast<int64_t>(Below(3)) + 1},
                      Below(2) == 0 ? Phase::kTraining : Phase::kFailed,
                      static_cast<int64_t>(Below(5)));
        }
        core_->OnTrainerHolds(now_, SomeTrainer(), held, effects);
        break;
      }
      case 9: {
        const TrainerId from = SomeTrainer();
        const bool counts = from == alive_ && told_ready_.count(from) > 0;
        if (counts) made_.push_back(std::to_string(made_.size() + 1));
        core_->OnStepReport(now_, from, {{"j"}, 1}, 0,
                            counts ? made_.back() : "stale", effects);
        break;
      }
      case 10:
        if (alive_.value != 0 && (Below(4) == 0 || killed_.count(alive_) > 0)) {
          const TrainerId dead = alive_;
          alive_ = TrainerId{};
          ++deaths_;
          core_->OnTrainerDied(now_, dead, "how", effects);
          ASSERT_FALSE(core_->status().trainer_ready);
        }
        break;
    }
    Carry(effects);
    ASSERT_EQ(core_->status().trainer_death_count, deaths_);
    if (core_->status().trainer_ready) {
      ASSERT_NE(alive_.value, 0);
      ASSERT_EQ(killed_.count(alive_), 0u);
      told_ready_.insert(alive_);
    }
  }

  // Obeys and answers for a while; then everything must be as it should.
  void Calm() {
    for (int i = 0; i < 400; ++i) {
      AgentEffects effects;
      if (alive_.value != 0 && killed_.count(alive_) > 0) {
        const TrainerId dead = alive_;
        alive_ = TrainerId{};
        ++deaths_;
        core_->OnTrainerDied(now_, dead, "how", effects);
      } else if (alive_.value != 0 && !core_->status().trainer_ready) {
        core_->OnTrainerReady(now_, alive_, effects);
      } else if (stream_open_ && !welcomed_) {
        Welcome(effects);
      } else if (stream_open_ && acked_reports_ < last_sent_) {
        acked_reports_ = last_sent_;
        core_->OnReportsAck(now_, acked_reports_, effects);
      } else if (stream_open_ && core_->status().held.has_value() &&
                 core_->status().held->phase != Phase::kAborting) {
        log_.push_back(ReleaseCommand(static_cast<int64_t>(log_.size()) + 1,
                                      core_->status().held->key));
        core_->OnCommand(now_, log_.back(), effects);
      } else {
        now_ = std::max(now_, core_->NextDeadline());
        core_->Tick(now_, effects);
      }
      Carry(effects);
      if (::testing::Test::HasFatalFailure()) return;
    }
    EXPECT_TRUE(core_->connected());
    EXPECT_TRUE(core_->status().trainer_ready);
    EXPECT_FALSE(core_->status().held.has_value());
    EXPECT_EQ(last_status_, core_->status());
    EXPECT_EQ(last_sent_, static_cast<int64_t>(made_.size()));
  }

 private:
  uint64_t Below(uint64_t n) {
    return std::uniform_int_distribution<uint64_t>(0, n - 1)(rng_);
  }

  // Mostly the living one; sometimes one that is dead or never was.
  TrainerId SomeTrainer() {
    if (Below(5) == 0) return {static_cast<int64_t>(Below(4)) + 1};
    return alive_.value != 0 ? alive_ : TrainerId{1};
  }

  Command RandomCommand(int64_t sequence) {
    const GenerationKey key{{"j"}, static_cast<int64_t>(Below(3)) + 1};
    switch (Below(4)) {
      case 0:
        return {sequence, Start{.key = key}};
      case 1:
        return ReleaseCommand(sequence, key);
      case 2:
        return {sequence, CommitOutput{key}};
      default:
        return PrepareCommand(sequence, key);
    }
  }

  void Welcome(AgentEffects& effects) {
    welcomed_ = true;
    core_->OnWelcome(now_, {{coordinator_}, kLease, kBeat}, effects);
  }

  // Carries effects out as the shell would, checking each.
  void Carry(const AgentEffects& effects) {
    for (const AgentEffect& effect : effects) {
      if (const auto* spawn = std::get_if<SpawnTrainer>(&effect)) {
        ASSERT_EQ(alive_.value, 0) << "two trainers at once";
        ASSERT_EQ(spawn->trainer.value, last_spawned_ + 1);
        last_spawned_ = spawn->trainer.value;
        alive_ = spawn->trainer;
      } else if (const auto* kill = std::get_if<KillTrainer>(&effect)) {
        ASSERT_EQ(kill->trainer, alive_);
        ASSERT_TRUE(killed_.insert(kill->trainer).second) << "killed twice";
      } else if (const auto* tell = std::get_if<TellTrainer>(&effect)) {
        ASSERT_EQ(tell->trainer, alive_);
        ASSERT_EQ(killed_.count(alive_), 0u) << "a command to the doomed";
      } else if (std::holds_alternative<OpenStream>(effect)) {
        stream_open_ = true;
        welcomed_ = false;
        hello_sent_ = false;
        next_report_.reset();
      } else if (const auto* hello = std::get_if<SendHello>(&effect)) {
        ASSERT_TRUE(stream_open_ && !hello_sent_);
        hello_sent_ = true;
        ASSERT_GT(hello->hello.stream, last_stream_);
        last_stream_ = hello->hello.stream;
        last_status_ = hello->hello.status;
      } else if (const auto* status = std::get_if<SendStatus>(&effect)) {
        ASSERT_TRUE(stream_open_ && welcomed_) << "status before welcome";
        ASSERT_LE(status->status.applied_sequence,
                  static_cast<int64_t>(log_.size()));
        last_status_ = status->status;
      } else if (const auto* reports = std::get_if<SendReports>(&effect)) {
        ASSERT_TRUE(stream_open_ && welcomed_) << "reports before welcome";
        CheckReports(*reports);
      } else {
        FAIL() << "exit: " << std::get<Exit>(effect).status;
      }
    }
  }

  void CheckReports(const SendReports& sent) {
    ASSERT_FALSE(sent.reports.empty());
    ASSERT_LE(sent.reports.size(), 3u);
    ASSERT_GT(sent.first_sequence, acked_reports_) << "acknowledged before";
    // Without gaps on a stream, but for what was dropped.
    if (next_report_.has_value()) {
      ASSERT_GE(sent.first_sequence, *next_report_);
    }
    const int64_t expected = next_report_.value_or(acked_reports_ + 1);
    ASSERT_LE(sent.first_sequence - expected, sent.dropped_count);
    for (size_t i = 0; i < sent.reports.size(); ++i) {
      const int64_t sequence = sent.first_sequence + static_cast<int64_t>(i);
      ASSERT_EQ(sent.reports[i], std::to_string(sequence));
    }
    next_report_ =
        sent.first_sequence + static_cast<int64_t>(sent.reports.size());
    last_sent_ = std::max(last_sent_, *next_report_ - 1);
  }

  std::mt19937_64 rng_;
  std::optional<AgentCore> core_;
  Instant now_{absl::Hours(1)};

  TrainerId alive_;
  int64_t last_spawned_ = 0;
  int deaths_ = 0;
  std::set<TrainerId> killed_;
  std::set<TrainerId> told_ready_;  // Believed to be ready at some time.

  bool stream_open_ = false;
  bool hello_sent_ = false;
  bool welcomed_ = false;
  int64_t last_stream_ = 0;
  int64_t coordinator_ = 1;
  std::vector<Command> log_;
  WorkerStatus last_status_;

  std::vector<std::string> made_;  // Report i is the text of i + 1.
  std::optional<int64_t> next_report_;
  int64_t last_sent_ = 0;
  int64_t acked_reports_ = 0;
};

TEST(AgentCorePropertyTest, InvariantsHoldUnderRandomEventsAndAllIsWellAfter) {
  const char* env = std::getenv("TEST_SEED");
  const uint64_t first =
      env ? std::strtoull(env, nullptr, 10) : std::random_device{}();
  for (uint64_t seed = first; seed < first + (env ? 1 : 200); ++seed) {
    SCOPED_TRACE("TEST_SEED=" + std::to_string(seed));
    World world(seed);
    world.Begin();
    for (int i = 0; i < 400; ++i) {
      world.RandomEvent();
      if (HasFatalFailure()) return;
    }
    world.Calm();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace lockstep
