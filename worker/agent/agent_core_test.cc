// The agent's core and the coordinator.

#include "worker/agent/agent_core.h"

#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/agent/agent_core_fixture.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// ---------------------------------------------------------------- stream

TEST(AgentCoreTest, NothingIsSentBetweenHelloAndWelcome) {
  Subject s;
  s.Start();

  s.Ready();
  EXPECT_THAT(s.effects, IsEmpty());
  s.Report(0);
  EXPECT_THAT(s.effects, IsEmpty());
  s.Tick(absl::Seconds(5));
  EXPECT_THAT(s.effects, IsEmpty());

  s.Welcome();
  ASSERT_THAT(s.effects, SizeIs(2));
  EXPECT_THAT(std::get<SendReports>(s.effects[0]).reports, ElementsAre("0"));
  EXPECT_TRUE(std::get<SendStatus>(s.effects[1]).status.trainer_ready);
}

TEST(AgentCoreTest, StatusIsSentAtOnceWhenItChangesAndOtherwiseEveryBeat) {
  Subject s;
  s.Serve();

  s.Tick(kBeat - absl::Nanoseconds(1));
  EXPECT_THAT(s.effects, IsEmpty());
  s.Tick(absl::Nanoseconds(1));
  EXPECT_THAT(All<SendStatus>(s.effects), SizeIs(1));
  s.Tick(kBeat / 2);
  s.Command(PrepareCommand(1, kKey));
  EXPECT_THAT(All<SendStatus>(s.effects), SizeIs(1));
  s.Tick(kBeat - absl::Nanoseconds(1));
  EXPECT_THAT(s.effects, IsEmpty());
}

TEST(AgentCoreTest, ABeatThatACoordinatorSetsTooFastIsSlowedDown) {
  Subject s;
  s.Start();
  s.Do([&] {
    s.core.OnWelcome(s.now, {{1}, absl::ZeroDuration(), absl::ZeroDuration()},
                     s.effects);
  });

  s.Tick(absl::ZeroDuration());

  EXPECT_GE(s.core.NextDeadline(), s.now + Options().beat_interval_min);
}

TEST(AgentCoreTest, ReconnectsAfterWaitsThatDoubleUpToAThirdOfTheLease) {
  AgentOptions options = Options();
  options.reconnect_backoff_max = absl::Seconds(30);
  Subject s(options);
  s.Serve();

  absl::Duration longest;
  absl::Duration first;
  for (int attempt = 0; attempt < 20; ++attempt) {
    s.Closed(absl::UnavailableError("refused"));
    const absl::Duration wait = s.core.NextDeadline() - s.now;
    if (attempt == 0) first = wait;
    longest = std::max(longest, wait);
    s.Tick(wait);
    ASSERT_THAT(All<OpenStream>(s.effects), SizeIs(1));
    const auto hello = All<SendHello>(s.effects);
    ASSERT_THAT(hello, SizeIs(1));
    EXPECT_EQ(hello[0].hello.stream, attempt + 2);
    EXPECT_EQ(hello[0].hello.coordinator_incarnation,
              CoordinatorIncarnation{1});
  }

  // Each is spread over the upper half of its range.
  EXPECT_GE(first, absl::Milliseconds(50));
  EXPECT_LE(first, absl::Milliseconds(100));
  EXPECT_GT(longest, kLease / 6);
  EXPECT_LE(longest, kLease / 3);
}

TEST(AgentCoreTest, TwoWorkersDoNotComeBackAtTheSameMoment) {
  std::set<absl::Duration> waits;
  for (const char* name : {"w1", "w2", "w3", "w4"}) {
    AgentOptions options = Options();
    options.worker = {name};
    Subject s(options);
    s.Serve();
    s.Closed(absl::UnavailableError("broken"));
    waits.insert(s.core.NextDeadline() - s.now);
  }
  EXPECT_THAT(waits, SizeIs(4));
}

TEST(AgentCoreTest, AStreamNotWelcomedInTimeIsOpenedAgain) {
  Subject s;
  s.Start();

  s.Tick(Options().hello_timeout - absl::Nanoseconds(1));
  EXPECT_THAT(s.effects, IsEmpty());
  s.Tick(absl::Nanoseconds(1));
  EXPECT_THAT(All<OpenStream>(s.effects), SizeIs(1));
  EXPECT_EQ(All<SendHello>(s.effects).at(0).hello.stream, 2);
}

TEST(AgentCoreTest, OnceTheLeaseIsKnownAWelcomeIsNotAwaitedForLonger) {
  Subject s;
  s.Serve();
  s.Closed(absl::UnavailableError("broken"));
  s.Tick(absl::Seconds(1));
  ASSERT_THAT(All<OpenStream>(s.effects), SizeIs(1));

  s.Tick(kLease);

  EXPECT_THAT(All<OpenStream>(s.effects), SizeIs(1));
}

// The stream it came on was given up at the same moment.
TEST(AgentCoreTest, AWelcomeThatComesTooLateDoesNotCountForTheNextStream) {
  Subject s;
  s.Start();
  s.now = s.now + Options().hello_timeout;

  s.Welcome();

  EXPECT_FALSE(s.core.connected());
  EXPECT_EQ(All<SendHello>(s.effects).at(0).hello.stream, 2);
  EXPECT_THAT(All<SendStatus>(s.effects), IsEmpty());
}

TEST(AgentCoreTest, ACoordinatorThatStartedAgainCountsItsCommandsFromOne) {
  Subject s;
  s.Train();
  s.Command({2, Start{.key = kKey}});

  s.Reconnect(2);
  EXPECT_EQ(s.core.status().applied_sequence, 0);
  EXPECT_EQ(All<SendStatus>(s.effects).at(0).status.applied_sequence, 0);
  s.Command(ReleaseCommand(1, kKey));

  EXPECT_EQ(s.core.status().applied_sequence, 1);
  EXPECT_EQ(s.HeldPhase(), Phase::kAborting);
}

TEST(AgentCoreTest, ACoordinatorWhoseIncarnationWentBackEndsTheDaemon) {
  Subject s;
  s.Start();
  s.Welcome(5);
  s.Closed(absl::UnavailableError("broken"));
  s.Tick(absl::Seconds(1));

  s.Welcome(4);

  const auto exit = All<Exit>(s.effects);
  ASSERT_THAT(exit, SizeIs(1));
  EXPECT_EQ(exit[0].status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(exit[0].status.message()), HasSubstr("incarnation"));
}

TEST(AgentCoreTest, ATakenNameIsAskedForAgainUntilPatienceEnds) {
  Subject s;
  s.Start();
  const absl::Status taken = absl::AlreadyExistsError("belongs to pid 1");
  const Instant first = s.now;

  while (s.now - first < Options().name_taken_patience) {
    ASSERT_THAT(All<Exit>(s.Closed(taken)), IsEmpty()) << s.now - first;
    s.Tick(s.core.NextDeadline() - s.now);
    ASSERT_THAT(All<OpenStream>(s.effects), SizeIs(1));
  }
  const auto exit = All<Exit>(s.Closed(taken));

  ASSERT_THAT(exit, SizeIs(1));
  EXPECT_EQ(exit[0].status, taken);
}

TEST(AgentCoreTest, AWelcomeRenewsThePatienceForATakenName) {
  Subject s;
  s.Start();
  s.Closed(absl::AlreadyExistsError("taken"));
  s.Tick(absl::Seconds(1));
  s.Welcome();
  s.Closed(absl::UnavailableError("broken"));
  s.Tick(Options().name_taken_patience);

  EXPECT_THAT(All<Exit>(s.Closed(absl::AlreadyExistsError("taken"))),
              IsEmpty());
}

struct ClosedCase {
  const char* name;
  absl::StatusCode code;
  bool exits;
};

class StreamClosedTest : public ::testing::TestWithParam<ClosedCase> {};

TEST_P(StreamClosedTest, EndsTheDaemonOnlyWhereTryingAgainCannotHelp) {
  Subject s;
  s.Start();

  s.Closed(absl::Status(GetParam().code, "why"));

  EXPECT_EQ(!All<Exit>(s.effects).empty(), GetParam().exits);
}

INSTANTIATE_TEST_SUITE_P(
    All, StreamClosedTest,
    ::testing::Values(
        ClosedCase{"Ok", absl::StatusCode::kOk, false},
        ClosedCase{"Unavailable", absl::StatusCode::kUnavailable, false},
        ClosedCase{"Aborted", absl::StatusCode::kAborted, false},
        ClosedCase{"Full", absl::StatusCode::kResourceExhausted, false},
        ClosedCase{"Superseded", absl::StatusCode::kFailedPrecondition, true},
        ClosedCase{"BadMessage", absl::StatusCode::kInvalidArgument, true},
        ClosedCase{"NoSuchService", absl::StatusCode::kUnimplemented, true},
        ClosedCase{"NoEntry", absl::StatusCode::kPermissionDenied, true}),
    [](const auto& p) { return p.param.name; });

// --------------------------------------------------------------- reports

TEST(AgentCoreTest, ReportsAreSentTogetherWhenTheFirstIsOldEnough) {
  Subject s;
  s.Train();
  s.Report(0);
  EXPECT_THAT(s.effects, IsEmpty());
  s.Tick(Options().report_interval / 2);
  s.Report(1);

  s.Tick(Options().report_interval / 2 - absl::Nanoseconds(1));
  EXPECT_THAT(All<SendReports>(s.effects), IsEmpty());
  s.Tick(absl::Nanoseconds(1));

  const auto sent = All<SendReports>(s.effects);
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].first_sequence, 1);
  EXPECT_THAT(sent[0].reports, ElementsAre("0", "1"));
}

TEST(AgentCoreTest, AFullBatchIsSentAtOnce) {
  AgentOptions options = Options();
  options.report_batch_max = 3;
  Subject s(options);
  s.Train();
  s.Report(0);
  s.Report(1);

  s.Report(2);

  EXPECT_THAT(All<SendReports>(s.effects).at(0).reports, SizeIs(3));
}

TEST(AgentCoreTest, ReportsGoBeforeAStatusThatChangesThePhase) {
  Subject s;
  s.Train();
  s.Report(0);

  s.Holds(Held(kKey, Phase::kOutputReady, 1));

  ASSERT_THAT(s.effects, SizeIs(2));
  EXPECT_THAT(std::get<SendReports>(s.effects[0]).reports, ElementsAre("0"));
  EXPECT_EQ(std::get<SendStatus>(s.effects[1]).status.held->phase,
            Phase::kOutputReady);
}

TEST(AgentCoreTest, AfterAReconnectExactlyTheUnacknowledgedReportsAreSent) {
  Subject s;
  s.Train();
  for (int step = 0; step < 5; ++step) s.Report(step);
  s.Tick(absl::Seconds(1));
  ASSERT_THAT(All<SendReports>(s.effects), SizeIs(1));
  s.Ack(2);
  s.Closed(absl::UnavailableError("broken"));
  s.Report(5);  // Kept meanwhile.
  s.Tick(absl::Seconds(1));

  s.Welcome();

  const auto sent = All<SendReports>(s.effects);
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].first_sequence, 3);
  EXPECT_THAT(sent[0].reports, ElementsAre("2", "3", "4", "5"));
  EXPECT_EQ(sent[0].dropped_count, 0);
}

TEST(AgentCoreTest, SentReportsAreNotSentAgainOnTheSameStream) {
  Subject s;
  s.Train();
  s.Report(0);
  s.Tick(absl::Seconds(1));
  ASSERT_THAT(All<SendReports>(s.effects), SizeIs(1));

  s.Tick(absl::Seconds(10));

  EXPECT_THAT(All<SendReports>(s.effects), IsEmpty());
}

TEST(AgentCoreTest, TooManyReportsDropTheOldestAndCountThem) {
  AgentOptions options = Options();
  options.report_count_max = 4;
  options.report_batch_max = 2;
  Subject s(options);
  s.Train();
  s.Closed(absl::UnavailableError("away"));
  for (int step = 0; step < 7; ++step) s.Report(step);
  s.Tick(absl::Seconds(1));

  s.Welcome();

  const auto sent = All<SendReports>(s.effects);
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_EQ(sent[0].first_sequence, 4);
  EXPECT_THAT(sent[0].reports, ElementsAre("3", "4"));
  EXPECT_EQ(sent[0].dropped_count, 3);
  EXPECT_EQ(sent[1].first_sequence, 6);
  EXPECT_THAT(sent[1].reports, ElementsAre("5", "6"));
}

// ------------------------------------------------------------------ other

TEST(AgentCoreTest, OptionsOutOfRangeAreRefused) {
  const std::pair<const char*, void (*)(AgentOptions&)> kCases[] = {
      {"worker name", [](AgentOptions& o) { o.worker = {"W 1"}; }},
      {"incarnation", [](AgentOptions& o) { o.incarnation = {0}; }},
      {"report_count_max", [](AgentOptions& o) { o.report_count_max = 1; }},
      {"start_timeout",
       [](AgentOptions& o) { o.start_timeout = absl::ZeroDuration(); }},
      {"abort_timeout",
       [](AgentOptions& o) { o.abort_timeout = -absl::Seconds(1); }},
      {"progress_timeout",
       [](AgentOptions& o) { o.progress_timeout = absl::ZeroDuration(); }},
      {"hello_timeout",
       [](AgentOptions& o) { o.hello_timeout = absl::ZeroDuration(); }},
  };
  for (const auto& [what, spoil] : kCases) {
    AgentOptions options = Options();
    spoil(options);
    const absl::Status status = AgentCore::Create(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << what;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  }
}

}  // namespace
}  // namespace lockstep
