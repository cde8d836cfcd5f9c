#include "worker/command_line.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const MachineDefaults kMachine{.host_name = "GPU_7.Example.org",
                               .core_count = 12};

std::variant<WorkerFlags, TrainerOptions, SayAndExit> Parse(
    std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "/usr/bin/lockstep-worker");
  return ParseCommandLine(arguments, kMachine);
}

TEST(CommandLineTest, NothingNeedsToBeSaid) {
  const auto flags = std::get<WorkerFlags>(Parse({}));

  EXPECT_EQ(flags.coordinator, "127.0.0.1:7600");
  EXPECT_EQ(flags.name, "gpu-7.example.org");
  EXPECT_EQ(flags.device, "cpu");
  EXPECT_EQ(flags.threads, 12);
  EXPECT_EQ(flags.memory_bytes, 0);
  EXPECT_EQ(flags.listen_host, "127.0.0.1");
  EXPECT_EQ(flags.collectives, Collectives::kAuto);
}

TEST(CommandLineTest, EverythingCanBeSaid) {
  const auto flags = std::get<WorkerFlags>(Parse({"--coordinator",
                                                  "c.example.org:1",
                                                  "--name",
                                                  "W1",
                                                  "--device",
                                                  "cpu",
                                                  "--memory",
                                                  "1.5",
                                                  "--threads",
                                                  "3",
                                                  "--listen-host",
                                                  "10.0.0.7",
                                                  "--insecure",
                                                  "--collectives",
                                                  "shared-memory",
                                                  "--start-timeout",
                                                  "2m",
                                                  "--abort-timeout",
                                                  "500ms",
                                                  "--progress-timeout",
                                                  "20m",
                                                  "--name-taken-patience",
                                                  "1h"}));

  EXPECT_EQ(flags.coordinator, "c.example.org:1");
  EXPECT_EQ(flags.name, "w1");
  EXPECT_EQ(flags.threads, 3);
  EXPECT_EQ(flags.memory_bytes, int64_t{3} << 29);
  EXPECT_EQ(flags.listen_host, "10.0.0.7");
  EXPECT_EQ(flags.collectives, Collectives::kSharedMemory);
  EXPECT_EQ(flags.start_timeout, absl::Minutes(2));
  EXPECT_EQ(flags.abort_timeout, absl::Milliseconds(500));
  EXPECT_EQ(flags.progress_timeout, absl::Minutes(20));
  EXPECT_EQ(flags.name_taken_patience, absl::Hours(1));
}

TEST(CommandLineTest, ErrorsSayWhatIsWrongAndWhatWasExpected) {
  const struct {
    std::vector<std::string> arguments;
    const char* says;
  } kCases[] = {
      {{"--coordinator", "nowhere"}, "HOST:PORT"},
      {{"--coordinator", "127.0.0.1:0"}, "port 0"},
      {{"--coordinator", "c.example.org:1"}, "add --insecure"},
      {{"--listen-host", "0.0.0.0"}, "add --insecure"},
      {{"--listen-host", ""}, "--listen-host"},
      {{"--name", "W 1"}, "letters a to z"},
      {{"--name", ""}, "letters a to z"},
      {{"--device", "tpu"}, "--device"},
      {{"--collectives", "udp"}, "shared-memory"},
      {{"--collectives", "1"}, "shared-memory"},
      {{"--memory", "0"}, "--memory"},
      {{"--memory", "-1"}, "--memory"},
      {{"--memory", "nan"}, "--memory"},
      {{"--memory", "inf"}, "--memory"},
      {{"--memory", "1e300"}, "--memory"},
      {{"--memory", "4GiB"}, "--memory"},
      {{"--threads", "0"}, "--threads"},
      {{"--threads", "1025"}, "--threads"},
      {{"--threads", "many"}, "--threads"},
      {{"--abort-timeout", "0s"}, "expected a duration"},
      {{"--abort-timeout", "soon"}, "expected a duration"},
      {{"--abort-timeout", "inf"}, "expected a duration"},
      {{"--thread", "1"}, "--thread"},
      {{"w1"}, "w1"},
      {{"trainer"}, "required"},
  };
  for (const auto& c : kCases) {
    const auto result = Parse(c.arguments);
    const auto* end = std::get_if<SayAndExit>(&result);
    ASSERT_NE(end, nullptr) << c.says;
    EXPECT_EQ(end->code, 2) << c.says;
    EXPECT_THAT(end->err, HasSubstr(c.says));
    EXPECT_THAT(end->err, HasSubstr("lockstep-worker: error: "));
    EXPECT_EQ(end->out, "");
  }
}

TEST(CommandLineTest, HelpAndVersionAreNoErrors) {
  const auto help = std::get<SayAndExit>(Parse({"--help"}));
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, HasSubstr("--coordinator"));
  EXPECT_THAT(help.out, Not(HasSubstr("trainer --")));
  EXPECT_THAT(help.out, Not(HasSubstr("Subcommands")));
  const auto version = std::get<SayAndExit>(Parse({"--version"}));
  EXPECT_EQ(version.code, 0);
  EXPECT_THAT(version.out, HasSubstr("0.1.0"));
}

TEST(CommandLineTest, TheTrainerReadsWhatTheAgentWritesForIt) {
  WorkerFlags flags;
  flags.name = "w1";
  flags.coordinator = "127.0.0.1:1";
  flags.threads = 3;
  flags.memory_bytes = 12345678901;
  flags.listen_host = "10.0.0.7";
  flags.collectives = Collectives::kTcp;
  flags.start_timeout = absl::Seconds(10);
  std::vector<std::string> arguments = TrainerArguments(flags);
  for (const char* own : {"--link-fd", "3", "--agent-pid", "77"}) {
    arguments.push_back(own);
  }

  const auto options =
      std::get<TrainerOptions>(ParseCommandLine(arguments, kMachine));

  EXPECT_EQ(options.link_fd, 3);
  EXPECT_EQ(options.agent_process_id, 77);
  EXPECT_EQ(options.worker, WorkerId{"w1"});
  EXPECT_EQ(options.device, "cpu");
  EXPECT_EQ(options.threads, 3);
  EXPECT_EQ(options.memory_bytes, 12345678901);
  EXPECT_EQ(options.listen_host, "10.0.0.7");
  EXPECT_EQ(options.collectives, Collectives::kTcp);
  EXPECT_EQ(options.lock_key, "cpu w1 127.0.0.1:1");
  EXPECT_EQ(options.lock_timeout, absl::Milliseconds(7500));
}

TEST(CommandLineTest, AnyHostNameMakesAWorkerName) {
  EXPECT_EQ(WorkerNameOf("node1"), "node1");
  EXPECT_EQ(WorkerNameOf("Node_1.Local"), "node-1.local");
  EXPECT_EQ(WorkerNameOf("_x"), "x");
  EXPECT_EQ(WorkerNameOf(""), "worker");
  EXPECT_EQ(WorkerNameOf("\xE4\xF6"), "worker");
  EXPECT_EQ(WorkerNameOf(std::string(100, 'n')), std::string(63, 'n'));
}

}  // namespace
}  // namespace lockstep
