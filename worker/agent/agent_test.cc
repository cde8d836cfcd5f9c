// The whole agent, with real trainer processes and real streams.
#include "worker/agent/agent.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <list>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/agent/fake_coordinator.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using Memory = FakeCoordinator::Memory;

const GenerationKey kKey{{"j"}, 1};

Prepare MakePrepare() {
  return {.key = kKey,
          .rank = 0,
          .workers = {{"w1"}},
          .spec = std::make_shared<const std::string>()};
}

Start MakeStart() {
  return {.key = kKey, .peer_addresses = {""}, .micro_batches = {{0, 1}}};
}

std::string FakeWorkerPath() {
  return absl::StrCat(std::getenv("TEST_SRCDIR"),
                      "/lockstep/worker/agent/fake_worker");
}

Agent::Options MakeOptions(const std::string& coordinator,
                           const std::string& behaviour) {
  Agent::Options options;
  options.core.worker = {"w1"};
  options.core.incarnation = {1};
  options.core.device = {.kind = "cpu", .numeric_class = "test"};
  options.core.restart_backoff = absl::Milliseconds(10);
  options.core.reconnect_backoff = absl::Milliseconds(20);
  options.core.report_interval = absl::Milliseconds(20);
  options.stream.coordinator = coordinator;
  options.trainer.program = FakeWorkerPath();
  // The lock is of this process alone: tests run side by side.
  options.trainer.arguments = {
      "fake_worker",    "trainer",
      "--worker",       "w1",
      "--device",       "cpu",
      "--threads",      "1",
      "--memory-bytes", "0",
      "--listen-host",  "127.0.0.1",
      "--collectives",  "auto",
      "--lock-key",     absl::StrCat("agent_test ", getpid()),
      "--lock-timeout", "30s"};
  options.trainer.environment = {absl::StrCat("FAKE_TRAINER=", behaviour)};
  return options;
}

// An agent that runs until the end of the test.
class Running {
 public:
  explicit Running(const Agent::Options& options)
      : agent_(Agent::Create(options, RealClock()).value()),
        thread_([this] { result_ = agent_->Run(); }) {}
  ~Running() {
    if (thread_.joinable()) Stop().IgnoreError();
  }

  absl::Status Stop() {
    agent_->Stop();
    return Wait();
  }
  // Until it ends by itself.
  absl::Status Wait() {
    thread_.join();
    return result_;
  }

 private:
  const std::unique_ptr<Agent> agent_;
  absl::Status result_;
  std::thread thread_;
};

bool TrainerIsReady(const Memory& memory) {
  return FakeCoordinator::Last(memory).trainer_ready;
}

auto HoldsIn(Phase phase) {
  return [phase](const Memory& memory) {
    const auto& held = FakeCoordinator::Last(memory).held;
    return held.has_value() && held->phase == phase;
  };
}

bool HoldsNothing(const Memory& memory) {
  return !FakeCoordinator::Last(memory).held.has_value();
}

auto HasDied(int times) {
  return [times](const Memory& memory) {
    return FakeCoordinator::Last(memory).trainer_death_count >= times;
  };
}

std::vector<int64_t> StepsOf(const Memory& memory, size_t first_message) {
  std::vector<int64_t> steps;
  for (size_t i = first_message; i < memory.reports.size(); ++i) {
    for (const auto& report : memory.reports[i].reports()) {
      steps.push_back(report.step());
    }
  }
  return steps;
}

TEST(AgentTest, ServesAGenerationToItsEnd) {
  FakeCoordinator coordinator;
  Running agent(MakeOptions(coordinator.address(), "steps=600"));
  ASSERT_TRUE(coordinator.WaitUntil(TrainerIsReady));

  coordinator.Send(MakePrepare());
  ASSERT_TRUE(coordinator.WaitUntil(HoldsIn(Phase::kJoined)));
  coordinator.Send(MakeStart());
  ASSERT_TRUE(coordinator.WaitUntil(HoldsIn(Phase::kOutputReady)));

  // All reports are there before the status that may end the job.
  const Memory memory = coordinator.memory();
  const auto steps = StepsOf(memory, 0);
  ASSERT_THAT(steps, SizeIs(600));
  for (int64_t i = 0; i < 600; ++i) ASSERT_EQ(steps[i], i);
  EXPECT_EQ(memory.reports[0].reports(0).worker(), "workers/w1");
  EXPECT_EQ(memory.statuses.back().held->committed_step_count, 600);

  coordinator.Send(CommitOutput{kKey});
  ASSERT_TRUE(coordinator.WaitUntil(HoldsIn(Phase::kFinished)));
  coordinator.Send(Release{kKey, "done"});
  ASSERT_TRUE(coordinator.WaitUntil(HoldsNothing));
  EXPECT_EQ(FakeCoordinator::Last(coordinator.memory()).trainer_death_count, 0);
}

TEST(AgentTest, WhatATrainerSaidBeforeItsDeathIsNotLost) {
  FakeCoordinator coordinator;
  Running agent(
      MakeOptions(coordinator.address(), "steps=600,exit_after_steps"));
  ASSERT_TRUE(coordinator.WaitUntil(TrainerIsReady));
  coordinator.Send(MakePrepare());

  coordinator.Send(MakeStart());

  ASSERT_TRUE(coordinator.WaitUntil(HoldsIn(Phase::kFailed)));
  EXPECT_THAT(StepsOf(coordinator.memory(), 0), SizeIs(600));
  const WorkerStatus status = FakeCoordinator::Last(coordinator.memory());
  EXPECT_EQ(status.held->committed_step_count, 600);
  EXPECT_EQ(status.last_trainer_death.substr(0, 11), "exit code 5");
}

TEST(AgentTest, ReconnectsToARestartedCoordinatorAndSendsWhatIsUnacknowledged) {
  FakeCoordinator coordinator;
  Running agent(MakeOptions(coordinator.address(), "steps=10"));
  ASSERT_TRUE(coordinator.WaitUntil(TrainerIsReady));
  coordinator.Send(MakePrepare());
  coordinator.Send(MakeStart());
  ASSERT_TRUE(coordinator.WaitUntil(HoldsIn(Phase::kOutputReady)));
  coordinator.AckReports(4);
  // Answered after the acknowledgement, which is thereby known to be read.
  coordinator.Send(CommitOutput{kKey});
  ASSERT_TRUE(coordinator.WaitUntil(HoldsIn(Phase::kFinished)));
  const size_t seen = coordinator.memory().reports.size();

  coordinator.StopServing();
  coordinator.ServeAgain();

  ASSERT_TRUE(coordinator.WaitUntil(
      [&](const Memory& m) { return m.reports.size() > seen; }));
  const Memory memory = coordinator.memory();
  EXPECT_THAT(StepsOf(memory, seen), ElementsAre(4, 5, 6, 7, 8, 9));
  EXPECT_EQ(memory.reports[seen].first_sequence(), 5);
  const Hello& hello = memory.hellos.back();
  EXPECT_GT(hello.stream, 1);
  EXPECT_EQ(hello.coordinator_incarnation, CoordinatorIncarnation{1});
  // The trainer was not disturbed, and takes the new coordinator's commands.
  EXPECT_EQ(hello.status.held->phase, Phase::kFinished);
  EXPECT_EQ(hello.status.trainer_death_count, 0);
  coordinator.Send(Release{kKey, ""});
  EXPECT_TRUE(coordinator.WaitUntil(HoldsNothing));
}

TEST(AgentTest, ATrainerThatDoesNotReleaseIsKilledAndReplaced) {
  FakeCoordinator coordinator;
  Agent::Options options = MakeOptions(coordinator.address(), "ignore_release");
  options.core.abort_timeout = absl::Milliseconds(200);
  Running agent(options);
  ASSERT_TRUE(coordinator.WaitUntil(TrainerIsReady));
  coordinator.Send(MakePrepare());
  ASSERT_TRUE(coordinator.WaitUntil(HoldsIn(Phase::kJoined)));

  coordinator.Send(Release{kKey, "over"});

  ASSERT_TRUE(coordinator.WaitUntil(HoldsIn(Phase::kAborting)));
  ASSERT_TRUE(coordinator.WaitUntil(HoldsNothing));
  ASSERT_TRUE(coordinator.WaitUntil(TrainerIsReady));
  const WorkerStatus status = FakeCoordinator::Last(coordinator.memory());
  EXPECT_EQ(status.trainer_death_count, 1);
  EXPECT_THAT(status.last_trainer_death,
              HasSubstr("signal 9 (Killed) by its agent: it did not let go"));
}

TEST(AgentTest, ACrashIsReportedWithItsLastLines) {
  FakeCoordinator coordinator;
  Running agent(MakeOptions(coordinator.address(), "crash"));
  ASSERT_TRUE(coordinator.WaitUntil(TrainerIsReady));

  coordinator.Send(MakePrepare());

  ASSERT_TRUE(coordinator.WaitUntil(HoldsIn(Phase::kFailed)));
  const WorkerStatus status = FakeCoordinator::Last(coordinator.memory());
  EXPECT_THAT(status.last_trainer_death,
              HasSubstr("signal 11 (Segmentation fault); last lines: "));
  EXPECT_THAT(status.last_trainer_death,
              HasSubstr("loading the model | row 7 | about to crash"));
  EXPECT_EQ(status.held->failure->cause, Failure::Cause::kWorker);
  EXPECT_THAT(status.held->failure->message, HasSubstr("row 7"));
  ASSERT_TRUE(coordinator.WaitUntil(TrainerIsReady));
  coordinator.Send(Release{kKey, ""});
  EXPECT_TRUE(coordinator.WaitUntil(HoldsNothing));
}

TEST(AgentTest, ATrainerThatExitsAtItsStartIsTriedAgain) {
  FakeCoordinator coordinator;
  Running agent(MakeOptions(coordinator.address(), "exit_at_start"));

  ASSERT_TRUE(coordinator.WaitUntil(HasDied(3)));

  EXPECT_EQ(FakeCoordinator::Last(coordinator.memory()).last_trainer_death,
            "exit code 3; last lines: no device | giving up");
}

TEST(AgentTest, ATrainerThatIsNotReadyInTimeIsKilled) {
  FakeCoordinator coordinator;
  Agent::Options options = MakeOptions(coordinator.address(), "never_ready");
  options.core.start_timeout = absl::Milliseconds(200);
  Running agent(options);

  ASSERT_TRUE(coordinator.WaitUntil(HasDied(1)));

  EXPECT_THAT(FakeCoordinator::Last(coordinator.memory()).last_trainer_death,
              HasSubstr("by its agent: it was not ready within 200ms"));
}

TEST(AgentTest, ATrainerThatCannotBeStartedIsReportedAsDead) {
  FakeCoordinator coordinator;
  Agent::Options options = MakeOptions(coordinator.address(), "");
  options.trainer.program = "/nowhere/trainer";
  Running agent(options);

  ASSERT_TRUE(coordinator.WaitUntil(HasDied(2)));

  EXPECT_THAT(FakeCoordinator::Last(coordinator.memory()).last_trainer_death,
              HasSubstr("/nowhere/trainer: No such file or directory"));
}

TEST(AgentTest, GarbageOnTheLinkKillsTheTrainer) {
  FakeCoordinator coordinator;
  Running agent(MakeOptions(coordinator.address(), "garbage"));

  ASSERT_TRUE(coordinator.WaitUntil(HasDied(1)));

  EXPECT_THAT(FakeCoordinator::Last(coordinator.memory()).last_trainer_death,
              HasSubstr("by its agent: its link: a frame of 4294967295 bytes"));
}

TEST(AgentTest, ATrainerThatClosesItsLinkAndStaysIsKilled) {
  FakeCoordinator coordinator;
  Agent::Options options = MakeOptions(coordinator.address(), "close_link");
  options.link_end_patience = absl::Milliseconds(100);
  Running agent(options);

  ASSERT_TRUE(coordinator.WaitUntil(HasDied(1)));

  EXPECT_THAT(FakeCoordinator::Last(coordinator.memory()).last_trainer_death,
              HasSubstr("it closed its link and did not end"));
}

// Whatever the trainer does, the coordinator hears of the worker in time.
class BeatTest : public ::testing::TestWithParam<const char*> {};

TEST_P(BeatTest, GoesOn) {
  FakeCoordinator coordinator;
  Agent::Options options = MakeOptions(coordinator.address(), GetParam());
  int output[2];
  ASSERT_EQ(pipe(output), 0);
  options.output_fd = output[1];  // Where nobody reads.
  {
    Running agent(options);
    ASSERT_TRUE(coordinator.WaitUntil(TrainerIsReady));
    coordinator.Send(MakePrepare());
    const size_t before = coordinator.memory().statuses.size();

    Instant last = RealClock().Now();
    absl::Duration longest;
    for (size_t i = 1; i <= 10; ++i) {
      ASSERT_TRUE(coordinator.WaitUntil(
          [&](const Memory& m) { return m.statuses.size() >= before + i; }));
      const Instant now = RealClock().Now();
      longest = std::max(longest, now - last);
      last = now;
    }

    EXPECT_LT(longest, FakeCoordinator::kLease);
    EXPECT_EQ(coordinator.memory().hellos.size(), 1u);
    EXPECT_EQ(FakeCoordinator::Last(coordinator.memory()).trainer_death_count,
              0);
  }
  close(output[0]);
  close(output[1]);
}

INSTANTIATE_TEST_SUITE_P(All, BeatTest,
                         ::testing::Values("stop", "not_reading", "spam"),
                         [](const auto& p) { return p.param; });

TEST(AgentTest, AStoppedTrainerIsKilledWhenItsGenerationIsReleased) {
  FakeCoordinator coordinator;
  Agent::Options options = MakeOptions(coordinator.address(), "stop");
  options.core.abort_timeout = absl::Milliseconds(200);
  Running agent(options);
  ASSERT_TRUE(coordinator.WaitUntil(TrainerIsReady));
  coordinator.Send(MakePrepare());
  ASSERT_TRUE(coordinator.WaitUntil(HoldsIn(Phase::kPreparing)));

  coordinator.Send(Release{kKey, ""});

  EXPECT_TRUE(coordinator.WaitUntil(HoldsNothing));
  EXPECT_TRUE(coordinator.WaitUntil(HasDied(1)));
}

TEST(AgentTest, TheTrainersOutputIsPassedOnWithItsProcess) {
  FakeCoordinator coordinator;
  Agent::Options options = MakeOptions(coordinator.address(), "exit_at_start");
  int output[2];
  ASSERT_EQ(pipe(output), 0);
  options.output_fd = output[1];
  std::string text;
  {
    Running agent(options);
    char bytes[4096];
    while (!absl::StrContains(text, "giving up\n")) {
      const ssize_t n = read(output[0], bytes, sizeof bytes);
      ASSERT_GT(n, 0);
      text.append(bytes, static_cast<size_t>(n));
    }
  }
  close(output[0]);
  close(output[1]);

  EXPECT_THAT(text,
              ::testing::ContainsRegex("^\\[trainer [0-9]+\\] no device\n"
                                       "\\[trainer [0-9]+\\] giving up\n"));
}

TEST(AgentTest, StopTellsTheCoordinatorThatItLeavesAndEndsTheTrainer) {
  FakeCoordinator coordinator;
  Running agent(MakeOptions(coordinator.address(), ""));
  ASSERT_TRUE(coordinator.WaitUntil(TrainerIsReady));

  EXPECT_TRUE(agent.Stop().ok());

  EXPECT_TRUE(
      coordinator.WaitUntil([](const Memory& m) { return m.left_count == 1; }));
  EXPECT_EQ(coordinator.memory().broken_count, 0);
}

TEST(AgentTest, StopDoesNotWaitForACoordinatorThatIsNotThere) {
  Agent::Options options = MakeOptions("127.0.0.1:1", "");
  options.leave_timeout = absl::Hours(1);
  Running agent(options);

  EXPECT_TRUE(agent.Stop().ok());
}

TEST(AgentTest, ATakenNameEndsItWithTheCoordinatorsWords) {
  FakeCoordinator coordinator;
  coordinator.AnswerHellosWith(
      absl::AlreadyExistsError("the name w1 belongs to a live worker"));
  Agent::Options options = MakeOptions(coordinator.address(), "");
  options.core.name_taken_patience = absl::Milliseconds(200);
  Running agent(options);

  const absl::Status status = agent.Wait();

  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(status.message(), "the name w1 belongs to a live worker");
  EXPECT_GT(coordinator.memory().hellos.size(), 2u);
}

TEST(AgentTest, ANameThatBecomesFreeInTimeIsTaken) {
  FakeCoordinator coordinator;
  coordinator.AnswerHellosWith(absl::AlreadyExistsError("taken"));
  Running agent(MakeOptions(coordinator.address(), ""));
  ASSERT_TRUE(coordinator.WaitUntil(
      [](const Memory& m) { return m.hellos.size() >= 2; }));

  coordinator.AnswerHellosWith(absl::OkStatus());

  EXPECT_TRUE(coordinator.WaitUntil(TrainerIsReady));
}

// Passes bytes on between those who connect and a port, until it is frozen:
// then it takes connections and keeps them open, and says nothing on any, as a
// host does whose process hangs.
class Relay {
 public:
  explicit Relay(int target_port) : target_port_(target_port) {
    listener_ = UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = Loopback(0);
    auto* where = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener_.get(), where, sizeof address), 0);
    EXPECT_EQ(listen(listener_.get(), 16), 0);
    socklen_t size = sizeof address;
    EXPECT_EQ(getsockname(listener_.get(), where, &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Run(); });
  }
  ~Relay() {
    stop_ = true;
    Wake();
    thread_.join();
  }

  int port() const { return port_; }
  void Freeze(bool frozen) {
    frozen_ = frozen;
    Wake();
  }
  // Waits until so many have connected to it while it was frozen.
  void WaitForFrozenConnections(int count) {
    MutexLock lock(&mutex_);
    while (frozen_count_ < count) changed_.Wait(&mutex_);
  }

 private:
  struct Link {
    UniqueFd ends[2];
  };

  static sockaddr_in Loopback(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }

  void Wake() {
    const uint64_t one = 1;
    EXPECT_EQ(write(wake_.get(), &one, sizeof one), 8);
  }

  void Run() {
    while (!stop_) {
      std::vector<pollfd> fds = {{wake_.get(), POLLIN, 0},
                                 {listener_.get(), POLLIN, 0}};
      const bool frozen = frozen_;
      if (!frozen) {
        silent_.clear();
        for (const Link& link : links_) {
          for (const UniqueFd& end : link.ends) {
            fds.push_back({end.get(), POLLIN, 0});
          }
        }
      }
      ASSERT_GT(poll(fds.data(), fds.size(), -1), 0);
      if (fds[0].revents != 0) {
        uint64_t count;
        ASSERT_EQ(read(wake_.get(), &count, sizeof count), 8);
        continue;
      }
      if (frozen) {
        silent_.emplace_back(accept(listener_.get(), nullptr, nullptr));
        MutexLock lock(&mutex_);
        ++frozen_count_;
        changed_.SignalAll();
        continue;
      }
      size_t at = 2;
      for (auto link = links_.begin(); link != links_.end(); at += 2) {
        const bool goes_on =
            Pass(fds[at], link->ends[1]) && Pass(fds[at + 1], link->ends[0]);
        link = goes_on ? std::next(link) : links_.erase(link);
      }
      if (fds[1].revents != 0) Accept();
    }
  }

  static bool Pass(const pollfd& from, const UniqueFd& to) {
    if (from.revents == 0) return true;
    char bytes[16 << 10];
    const ssize_t n = recv(from.fd, bytes, sizeof bytes, 0);
    if (n <= 0) return false;
    return send(to.get(), bytes, static_cast<size_t>(n), MSG_NOSIGNAL) == n;
  }

  void Accept() {
    Link link;
    link.ends[0] = UniqueFd(accept(listener_.get(), nullptr, nullptr));
    link.ends[1] = UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = Loopback(target_port_);
    if (connect(link.ends[1].get(), reinterpret_cast<sockaddr*>(&address),
                sizeof address) == 0) {
      links_.push_back(std::move(link));
    }
  }

  const int target_port_;
  int port_ = 0;
  UniqueFd listener_;
  const UniqueFd wake_{eventfd(0, EFD_CLOEXEC)};
  std::atomic<bool> frozen_{false};
  std::atomic<bool> stop_{false};
  std::list<Link> links_;
  std::list<UniqueFd> silent_;
  Mutex mutex_;
  CondVar changed_;
  int frozen_count_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

TEST(AgentTest, ACoordinatorThatHangsIsNoticedAndFoundAgain) {
  FakeCoordinator coordinator;
  Relay relay(coordinator.port());
  Agent::Options options =
      MakeOptions(absl::StrCat("127.0.0.1:", relay.port()), "");
  options.stream.probe_interval = absl::Milliseconds(200);
  options.stream.probe_timeout = absl::Milliseconds(300);
  options.core.hello_timeout = absl::Milliseconds(500);
  Running agent(options);
  ASSERT_TRUE(coordinator.WaitUntil(TrainerIsReady));
  const Instant frozen = RealClock().Now();

  relay.Freeze(true);
  // The old stream is given up, and then the new one, of which nothing comes.
  relay.WaitForFrozenConnections(2);
  relay.Freeze(false);

  ASSERT_TRUE(coordinator.WaitUntil([](const Memory& m) {
    return m.hellos.size() >= 2 && m.open_streams >= 1;
  }));
  EXPECT_GE(coordinator.memory().hellos.back().stream, 3);
  EXPECT_LT(RealClock().Now() - frozen, absl::Seconds(20));
  EXPECT_EQ(FakeCoordinator::Last(coordinator.memory()).trainer_death_count, 0);
}

// Probes more often than gRPC's servers suffer by default must not end a
// stream on which all is well.
TEST(AgentTest, ProbesDoNotEndAQuietStream) {
  FakeCoordinator coordinator;
  Agent::Options options = MakeOptions(coordinator.address(), "");
  options.stream.probe_interval = absl::Milliseconds(100);
  options.core.beat_interval_min = absl::Milliseconds(500);
  Running agent(options);
  ASSERT_TRUE(coordinator.WaitUntil(TrainerIsReady));
  const size_t before = coordinator.memory().statuses.size();

  ASSERT_TRUE(coordinator.WaitUntil(
      [&](const Memory& m) { return m.statuses.size() >= before + 5; }));

  EXPECT_EQ(coordinator.memory().hellos.size(), 1u);
}

}  // namespace
}  // namespace lockstep
