// Both ends of the link against each other, and each against what breaks it.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/link/agent_link.h"
#include "worker/link/link.pb.h"
#include "worker/link/trainer_link.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const GenerationKey kKey{{"j"}, 3};

std::pair<UniqueFd, UniqueFd> SocketPair() {
  int fds[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

struct Pair {
  Pair() : Pair(SocketPair()) {}
  explicit Pair(std::pair<UniqueFd, UniqueFd> sockets)
      : agent(std::make_unique<AgentLink>(std::move(sockets.first))),
        trainer(std::make_unique<TrainerLink>(std::move(sockets.second))) {}
  std::unique_ptr<AgentLink> agent;
  std::unique_ptr<TrainerLink> trainer;
};

Prepare MakePrepare() {
  v1::JobSpec spec;
  spec.set_output_directory("/out");
  return {
      .key = kKey,
      .rank = 1,
      .workers = {{"w0"}, {"w1"}},
      .spec = std::make_shared<const std::string>(spec.SerializeAsString())};
}

v1::StepMetrics Metrics(int64_t step) {
  v1::StepMetrics metrics;
  metrics.set_job("jobs/j");
  metrics.set_generation(3);
  metrics.set_step(step);
  return metrics;
}

TEST(LinkTest, CommandsArriveInOrderAsTheyWereSent) {
  Pair link;
  Start start{.key = kKey,
              .peer_addresses = {std::string("\x00\xFF", 2), ""},
              .first_step = 5,
              .plan_version = 2,
              .micro_batches = {{0, 2}, {2, 1}},
              .nonce = "n"};

  ASSERT_TRUE(link.agent->Send(MakePrepare()).ok());
  ASSERT_TRUE(link.agent->Send(start).ok());
  ASSERT_TRUE(link.agent->Send(CommitOutput{kKey}).ok());
  ASSERT_TRUE(link.agent->Send(Release{kKey, "why"}).ok());

  const auto prepare = std::get<Prepare>(link.trainer->Next().value());
  EXPECT_EQ(prepare.key, kKey);
  EXPECT_EQ(prepare.rank, 1);
  EXPECT_EQ(prepare.workers, MakePrepare().workers);
  v1::JobSpec spec;
  ASSERT_TRUE(spec.ParseFromString(*prepare.spec));
  EXPECT_EQ(spec.output_directory(), "/out");
  const auto got = std::get<Start>(link.trainer->Next().value());
  EXPECT_EQ(got.peer_addresses, start.peer_addresses);
  EXPECT_EQ(got.first_step, 5);
  EXPECT_EQ(got.plan_version, 2);
  EXPECT_EQ(got.micro_batches, start.micro_batches);
  EXPECT_EQ(got.nonce, "n");
  EXPECT_EQ(std::get<CommitOutput>(link.trainer->Next().value()).key, kKey);
  EXPECT_EQ(std::get<Release>(link.trainer->Next().value()).reason, "why");
}

TEST(LinkTest, WhatATrainerSaysArrivesInOrder) {
  Pair link;
  HeldGeneration held;
  held.key = kKey;
  held.rank = 1;
  held.phase = Phase::kFailed;
  held.failure = Failure{.cause = Failure::Cause::kPeer,
                         .code = absl::StatusCode::kUnavailable,
                         .message = "rank 0 is gone",
                         .peer_rank = 0};

  ASSERT_TRUE(link.trainer->SendReady().ok());
  ASSERT_TRUE(link.trainer->SendStepReport(Metrics(8)).ok());
  ASSERT_TRUE(link.trainer->SendHolds(held).ok());
  ASSERT_TRUE(link.trainer->SendHolds(std::nullopt).ok());

  std::vector<TrainerMessage> messages;
  ASSERT_TRUE(link.agent->Read(messages).ok());
  ASSERT_THAT(messages, SizeIs(4));
  EXPECT_TRUE(std::holds_alternative<TrainerReady>(messages[0]));
  const auto& report = std::get<TrainerStepReport>(messages[1]);
  EXPECT_EQ(report.key, kKey);
  EXPECT_EQ(report.step, 8);
  EXPECT_EQ(report.report, Metrics(8).SerializeAsString());
  EXPECT_EQ(std::get<TrainerHolds>(messages[2]).held, held);
  EXPECT_FALSE(std::get<TrainerHolds>(messages[3]).held.has_value());
}

// A path in it, say, in some old encoding: the message must parse all the same.
TEST(LinkTest, AFailureMayBeAnyBytes) {
  Pair link;
  HeldGeneration held;
  held.key = kKey;
  held.phase = Phase::kFailed;
  held.failure = Failure{.message = "cannot open /data/\xE4\xF6"};

  ASSERT_TRUE(link.trainer->SendHolds(held).ok());

  std::vector<TrainerMessage> messages;
  ASSERT_TRUE(link.agent->Read(messages).ok());
  EXPECT_EQ(std::get<TrainerHolds>(messages.at(0)).held->failure->message,
            "cannot open /data/??");
}

TEST(LinkTest, ReportsOfSeveralThreadsDoNotMix) {
  Pair link;
  constexpr int kThreads = 4;
  constexpr int kReports = 500;
  std::vector<std::thread> threads;
  std::atomic<int> failed = 0;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kReports; ++i) {
        v1::StepMetrics metrics = Metrics(i);
        metrics.set_rank(t);
        metrics.set_worker(std::string(static_cast<size_t>(i), 'w'));
        if (!link.trainer->SendStepReport(metrics).ok()) ++failed;
      }
    });
  }

  std::vector<TrainerMessage> messages;
  while (messages.size() < size_t{kThreads} * kReports) {
    ASSERT_TRUE(link.agent->Read(messages).ok());
    std::this_thread::yield();
  }
  for (std::thread& t : threads) t.join();

  EXPECT_EQ(failed, 0);
  std::map<int, int64_t> next;
  for (const TrainerMessage& message : messages) {
    v1::StepMetrics metrics;
    ASSERT_TRUE(
        metrics.ParseFromString(std::get<TrainerStepReport>(message).report));
    ASSERT_EQ(metrics.step(), next[metrics.rank()]++);
  }
}

TEST(LinkTest, ATrainerThatDoesNotReadCostsNoTimeAndIsGivenUpInTheEnd) {
  Pair link;
  Prepare prepare = MakePrepare();
  v1::JobSpec spec;
  spec.set_output_directory(std::string(1 << 20, 'x'));
  prepare.spec = std::make_shared<const std::string>(spec.SerializeAsString());

  // Returns each time, though nobody reads.
  int taken = 0;
  absl::Status status;
  while ((status = link.agent->Send(prepare)).ok()) {
    ASSERT_LT(++taken, 100);
    EXPECT_TRUE(link.agent->wants_write());
  }

  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_GE(taken, 30);
}

TEST(LinkTest, WhatTheSocketDidNotTakeGoesOutWhenItCan) {
  Pair link;
  Prepare prepare = MakePrepare();
  v1::JobSpec spec;
  spec.set_output_directory(std::string(4 << 20, 'x'));
  prepare.spec = std::make_shared<const std::string>(spec.SerializeAsString());
  ASSERT_TRUE(link.agent->Send(prepare).ok());
  ASSERT_TRUE(link.agent->wants_write());

  std::string got;
  std::thread reader(
      [&] { got = *std::get<Prepare>(link.trainer->Next().value()).spec; });
  while (link.agent->wants_write()) {
    ASSERT_TRUE(link.agent->Write().ok());
    std::this_thread::yield();
  }
  reader.join();

  EXPECT_EQ(got, *prepare.spec);
}

TEST(LinkTest, TheTrainerIsToldThatItsAgentIsGone) {
  Pair link;
  ASSERT_TRUE(link.agent->Send(CommitOutput{kKey}).ok());

  link.agent.reset();

  // What was said before is still there.
  EXPECT_TRUE(link.trainer->Next().ok());
  EXPECT_EQ(link.trainer->Next().status().code(),
            absl::StatusCode::kUnavailable);
  // And no SIGPIPE.
  EXPECT_EQ(link.trainer->SendReady().code(), absl::StatusCode::kUnavailable);
}

TEST(LinkTest, TheAgentGetsADeadTrainersLastWordsAndThenItsEnd) {
  Pair link;
  ASSERT_TRUE(link.trainer->SendReady().ok());

  link.trainer.reset();

  std::vector<TrainerMessage> messages;
  EXPECT_EQ(link.agent->Read(messages).code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(messages, SizeIs(1));
  EXPECT_EQ(link.agent->Send(CommitOutput{kKey}).code(),
            absl::StatusCode::kUnavailable);
}

std::string FrameOf(const link::FromTrainer& message) {
  std::string frame;
  EXPECT_TRUE(AppendFrame(message.SerializeAsString(), frame).ok());
  return frame;
}

struct GarbageCase {
  const char* name;
  std::string bytes;
  const char* says;
};

std::vector<GarbageCase> GarbageCases() {
  std::string noise;
  EXPECT_TRUE(AppendFrame("\xFF\xFF\xFF", noise).ok());
  link::FromTrainer no_job;
  *no_job.mutable_step_report() = Metrics(1);
  no_job.mutable_step_report()->set_job("j");
  link::FromTrainer no_step;
  *no_step.mutable_step_report() = Metrics(-1);
  link::FromTrainer no_phase;
  no_phase.mutable_holds()->mutable_held()->set_job("j");
  no_phase.mutable_holds()->mutable_held()->set_generation(1);
  return {{"Text", "hello, world", "a frame of"},
          {"Noise", noise, "no FromTrainer message"},
          {"Empty", FrameOf({}), "without a body"},
          {"NoJob", FrameOf(no_job), "step_report.job"},
          {"NoStep", FrameOf(no_step), "step=-1"},
          {"NoPhase", FrameOf(no_phase), "phase"}};
}

class LinkGarbageTest : public ::testing::TestWithParam<GarbageCase> {};

TEST_P(LinkGarbageTest, IsRefusedByTheAgent) {
  auto [ours, theirs] = SocketPair();
  AgentLink agent(std::move(ours));
  const std::string good = [] {
    link::FromTrainer ready;
    ready.mutable_ready();
    return FrameOf(ready);
  }();
  const std::string bytes = good + GetParam().bytes + good;
  ASSERT_EQ(write(theirs.get(), bytes.data(), bytes.size()),
            static_cast<ssize_t>(bytes.size()));

  std::vector<TrainerMessage> messages;
  const absl::Status status = agent.Read(messages);

  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().says));
  // For good: nothing after it is believed.
  EXPECT_EQ(agent.Read(messages), status);
  EXPECT_THAT(messages, SizeIs(1));
}

INSTANTIATE_TEST_SUITE_P(All, LinkGarbageTest,
                         ::testing::ValuesIn(GarbageCases()),
                         [](const auto& p) { return p.param.name; });

TEST(LinkTest, ATrainerThatNeverStopsTalkingDoesNotKeepTheAgent) {
  Pair link;
  std::atomic<bool> stop = false;
  std::thread talker([&] {
    while (!stop && link.trainer->SendStepReport(Metrics(1)).ok()) {
    }
  });

  size_t most = 0;
  for (int i = 0; i < 50; ++i) {
    std::vector<TrainerMessage> messages;
    ASSERT_TRUE(link.agent->Read(messages).ok());
    most = std::max(most, messages.size());
  }
  stop = true;
  link.agent.reset();
  talker.join();

  // One report is 14 bytes with its length.
  EXPECT_LE(most, 2 * AgentLink::kReadBytesMax / 14);
}

TEST(LinkTest, NothingToReadIsNoError) {
  Pair link;
  std::vector<TrainerMessage> messages;

  EXPECT_TRUE(link.agent->Read(messages).ok());
  EXPECT_THAT(messages, IsEmpty());
}

}  // namespace
}  // namespace lockstep
