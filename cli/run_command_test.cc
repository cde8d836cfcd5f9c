// `lockstep run` as a process, with a scripted coordinator and workers.

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kJobFile[] = R"(model:
  gpt2: {vocab_size: 256, n_embd: 64, n_layer: 2, n_head: 4}
data: {files: [a.txt], format: BYTES, sequence_length: 64}
batch: {global_batch_size: 8, micro_batch_size: 2}
schedule: {max_steps: 300, peak_learning_rate: 2e-3}
output_directory: out
)";

// A worker that says what it was asked, starts a child of its own, and waits.
constexpr char kWorker[] = R"(#!/bin/sh
echo "worker pid $$ $*" >> "$FAKE_TRACE"
echo "worker log line"
sleep 1000 &
echo "child pid $!" >> "$FAKE_TRACE"
trap 'echo "worker stops" >> "$FAKE_TRACE"; exit 0' TERM
wait
)";

// A worker that does not listen.
constexpr char kStubborn[] = R"(#!/bin/sh
trap '' TERM INT HUP
echo "worker pid $$ $*" >> "$FAKE_TRACE"
while :; do sleep 1000; done
)";

// A worker that ends at once.
constexpr char kDying[] = R"(#!/bin/sh
echo "worker pid $$ $*" >> "$FAKE_TRACE"
echo "no such device"
exit 3
)";

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Waits for something that must come; the bound is for a broken program only.
bool Eventually(const std::function<bool()>& condition) {
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (std::chrono::steady_clock::now() < deadline) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

// Whether a process runs (a zombie that nobody waits for does not).
bool Runs(pid_t pid) {
  const std::string stat = ReadFile(absl::StrCat("/proc/", pid, "/stat"));
  const size_t paren = stat.rfind(')');
  return paren != std::string::npos && stat[paren + 2] != 'Z';
}

class RunCommandTest : public ::testing::Test {
 protected:
  RunCommandTest()
      : folder_(fs::path(testing::TempDir()) /
                testing::UnitTest::GetInstance()->current_test_info()->name()),
        trace_(folder_ / "trace") {
    fs::remove_all(folder_);
    fs::create_directories(folder_ / "bin");
    fs::create_directories(folder_ / "tmp");
    std::ofstream(folder_ / "job.yaml") << kJobFile;
    fs::create_symlink(fs::absolute("cli/fake_coordinator_main"),
                       folder_ / "bin/lockstep-coordinator");
    SetWorker(kWorker);
    setenv("FAKE_TRACE", trace_.c_str(), 1);
    setenv("TMPDIR", (folder_ / "tmp").c_str(), 1);
    unsetenv("FAKE_END");
    unsetenv("FAKE_PLAY");
    unsetenv("FAKE_FAILURES");
  }

  // Whatever a test leaves must not outlive it.
  ~RunCommandTest() override {
    for (const pid_t pid : Pids()) kill(pid, SIGKILL);
  }

  void SetWorker(const char* script) {
    const fs::path path = folder_ / "bin/lockstep-worker";
    std::ofstream(path) << script;
    chmod(path.c_str(), 0700);
  }

  // Starts `lockstep run`.
  pid_t Start(std::vector<std::string> more = {}) {
    std::vector<std::string> args = {"cli/lockstep", "run",
                                     (folder_ / "job.yaml").string(),
                                     "--bin-dir", (folder_ / "bin").string()};
    args.insert(args.end(), more.begin(), more.end());
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    const pid_t pid = fork();
    if (pid == 0) {
      const int out = open((folder_ / "out.txt").c_str(),
                           O_WRONLY | O_CREAT | O_TRUNC, 0600);
      const int err = open((folder_ / "err.txt").c_str(),
                           O_WRONLY | O_CREAT | O_TRUNC, 0600);
      dup2(out_ >= 0 ? out_ : out, 1);
      dup2(err, 2);
      execv(argv[0], argv.data());
      _exit(127);
    }
    return pid;
  }

  // Waits for its end: the exit code, or 128 + the signal that killed it.
  static int Wait(pid_t pid) {
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  int Run(const std::vector<std::string>& more = {}) {
    return Wait(Start(more));
  }

  std::vector<std::string> TraceLines() const {
    return absl::StrSplit(ReadFile(trace_), '\n', absl::SkipEmpty());
  }

  bool Traced(const std::string& text) const {
    return absl::StrContains(ReadFile(trace_), text);
  }

  // Of the daemons and their children, as they said.
  std::vector<pid_t> Pids() const {
    std::vector<pid_t> pids;
    for (const std::string& line : TraceLines()) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ');
      if (words.size() >= 3 && words[1] == "pid") {
        pids.push_back(static_cast<pid_t>(std::stol(words[2])));
      }
    }
    return pids;
  }

  bool AllEnded() const {
    const auto pids = Pids();
    return std::none_of(pids.begin(), pids.end(), Runs);
  }

  std::string Out() const { return ReadFile(folder_ / "out.txt"); }
  std::string Err() const { return ReadFile(folder_ / "err.txt"); }

  // What is left in the folder for temporary files.
  std::vector<std::string> Left() const {
    std::vector<std::string> left;
    for (const auto& entry :
         fs::recursive_directory_iterator(folder_ / "tmp")) {
      if (!entry.is_directory()) left.push_back(entry.path().filename());
    }
    std::sort(left.begin(), left.end());
    return left;
  }

  int out_ = -1;  // What a run writes to instead of out.txt.
  const fs::path folder_;
  const fs::path trace_;
};

TEST_F(RunCommandTest, AJobThatCompletesLeavesNothingBehind) {
  setenv("FAKE_END", "COMPLETED", 1);

  EXPECT_EQ(Run({"--workers", "2", "--threads", "3", "--metrics",
                 (folder_ / "steps.csv").string()}),
            0)
      << Err();

  EXPECT_EQ(Err(), "");
  EXPECT_THAT(Out(), HasSubstr("jobs/job-1 COMPLETED: "));
  EXPECT_THAT(Out(),
              HasSubstr(absl::StrCat("jobs/job-1 completed: the model is in ",
                                     (folder_ / "out/model").string(), "\n")));
  EXPECT_TRUE(Traced("listen 127.0.0.1:0 store "));
  EXPECT_TRUE(Traced("submitted workers 2 to 2"));
  EXPECT_TRUE(Traced("--name w1 --device cpu --threads 3"));
  EXPECT_TRUE(Traced("--name w2 --device cpu --threads 3"));
  EXPECT_TRUE(Traced("--coordinator 127.0.0.1:"));
  EXPECT_TRUE(Traced("coordinator stops"));
  EXPECT_TRUE(Eventually([&] { return AllEnded(); }));
  EXPECT_THAT(Left(), IsEmpty());
  EXPECT_THAT(ReadFile(folder_ / "steps.csv"), HasSubstr(",4.5,"));
}

TEST_F(RunCommandTest, TheJobSaysHowManyWorkersIfNothingElseDoes) {
  setenv("FAKE_END", "COMPLETED", 1);
  EXPECT_EQ(Run({"--set", "parallel.max_workers=3"}), 0) << Err();
  EXPECT_TRUE(Traced("submitted workers 1 to 3"));
  EXPECT_TRUE(Traced("--name w3 "));
  EXPECT_FALSE(Traced("--name w4 "));
}

TEST_F(RunCommandTest, WorkersBeyondTheMicroBatchesAreIdleAndThatIsSaid) {
  setenv("FAKE_END", "COMPLETED", 1);
  EXPECT_EQ(Run({"--workers", "6"}), 0);
  EXPECT_EQ(Err(),
            "lockstep: a step has 4 micro-batches, so 2 of 6 workers stay "
            "idle\n");
  EXPECT_TRUE(Traced("submitted workers 4 to 6"));
}

TEST_F(RunCommandTest, AJobThatFailsByItsOwnFaultIsCode3AndLeavesNothing) {
  setenv("FAKE_END", "FAILED", 1);

  EXPECT_EQ(Run(), 3);

  EXPECT_EQ(Err(), "lockstep: error: jobs/job-1 failed: as scripted\n");
  EXPECT_THAT(Left(), IsEmpty());
}

TEST_F(RunCommandTest, OfAJobThatGivesUpTheLogsAreKept) {
  setenv("FAKE_END", "FAILED", 1);
  setenv("FAKE_FAILURES", "6", 1);  // One more than the job has patience for.

  EXPECT_EQ(Run(), 3);

  // The job has said why: no more than that, and where to look.
  EXPECT_THAT(Err(),
              StartsWith("lockstep: error: jobs/job-1 failed: as "
                         "scripted\nlockstep: the daemons' logs are in "));
  const std::string err = Err();
  EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 2) << err;
  EXPECT_THAT(Left(), ElementsAre("coordinator.log", "w1.log"));
  EXPECT_TRUE(Eventually([&] { return AllEnded(); }));
}

TEST_F(RunCommandTest, AJobThatIsCancelledIsCode4) {
  setenv("FAKE_END", "CANCELLED", 1);
  EXPECT_EQ(Run(), 4);
  EXPECT_EQ(Err(), "lockstep: jobs/job-1 was cancelled: as scripted\n");
  EXPECT_THAT(Left(), IsEmpty());
}

TEST_F(RunCommandTest, AFaultyJobStartsNothing) {
  EXPECT_EQ(Run({"--set", "parallel.zero_stage=4"}), 2);
  EXPECT_EQ(Err(),
            "lockstep: error: --set parallel.zero_stage=4: "
            "parallel.zero_stage: expected 0 to 3, got 4\n");
  EXPECT_EQ(Run({"--metrics", "/no/such/folder/x"}), 2);
  EXPECT_EQ(Err(),
            "lockstep: error: --metrics: cannot write /no/such/folder/x: No "
            "such file or directory\n");
  EXPECT_THAT(TraceLines(), IsEmpty());
  EXPECT_THAT(Left(), IsEmpty());
}

TEST_F(RunCommandTest, AMissingProgramIsNamed) {
  fs::remove(folder_ / "bin/lockstep-worker");
  EXPECT_EQ(Run(), 2);
  EXPECT_THAT(Err(), StartsWith(absl::StrCat(
                         "lockstep: error: cannot start ",
                         (folder_ / "bin/lockstep-worker").string(),
                         ": No such file or directory: --bin-dir says where "
                         "the programs are\n")));
  EXPECT_THAT(Left(), IsEmpty());
  EXPECT_TRUE(Eventually([&] { return AllEnded(); }));
}

TEST_F(RunCommandTest, AWorkerThatDiesEndsTheRunWithItsLastLines) {
  SetWorker(kDying);

  EXPECT_EQ(Run(), 1);

  EXPECT_THAT(Err(), StartsWith("lockstep: error: lockstep-worker w1 ended "
                                "while the job was on: exit code 3\n"));
  EXPECT_THAT(Err(), HasSubstr("w1.log ends with\n  | no such device\n"));
  EXPECT_THAT(Err(), Not(HasSubstr("fake coordinator")));
  EXPECT_TRUE(Traced("coordinator stops"));
  EXPECT_THAT(Left(), Contains("w1.log"));
}

TEST_F(RunCommandTest, AReaderThatGoesEndsTheRun) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  out_ = ends[1];

  EXPECT_EQ(Run(), 128 + SIGPIPE);

  close(ends[1]);
  EXPECT_TRUE(Traced("cancelled"));
  EXPECT_THAT(Left(), IsEmpty());
  EXPECT_TRUE(Eventually([&] { return AllEnded(); }));
}

TEST_F(RunCommandTest, AKilledWorkerEndsTheRun) {
  const pid_t run = Start({"--workers", "2"});
  ASSERT_TRUE(
      Eventually([&] { return Pids().size() == 5 && Traced("submitted"); }));
  kill(Pids()[1], SIGKILL);

  EXPECT_EQ(Wait(run), 1);

  EXPECT_THAT(Err(), HasSubstr("ended while the job was on: signal 9"));
  EXPECT_TRUE(Traced("worker stops"));
  EXPECT_TRUE(Eventually([&] { return AllEnded(); }));
}

TEST_F(RunCommandTest, ACoordinatorThatDiesEndsTheRun) {
  setenv("FAKE_PLAY", "die", 1);
  EXPECT_EQ(Run(), 1);
  EXPECT_THAT(Err(), HasSubstr("lockstep-coordinator ended while the job was "
                               "on: exit code 7\n"));
  // What daemons wrote does not reach the terminal as it is.
  EXPECT_THAT(Err(), HasSubstr("coordinator.log ends with\n"
                               "  | fake coordinator: started\n"
                               "  | fake coordinator: \\033[2Jbye\n"));
  EXPECT_TRUE(Eventually([&] { return AllEnded(); }));
}

TEST_F(RunCommandTest, ACoordinatorWithoutAPortIsSaid) {
  setenv("FAKE_PLAY", "garbage", 1);
  EXPECT_EQ(Run(), 1);
  EXPECT_THAT(Err(), HasSubstr("wrote no port into "));
  EXPECT_TRUE(Eventually([&] { return AllEnded(); }));
}

TEST_F(RunCommandTest, SignalsStopEverythingAndCancelTheJob) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    fs::remove(trace_);
    const pid_t run = Start();
    ASSERT_TRUE(
        Eventually([&] { return Pids().size() == 3 && Traced("submitted"); }));
    kill(run, signal);

    // As the signal would have ended it.
    EXPECT_EQ(Wait(run), 128 + signal);

    EXPECT_EQ(Err(),
              "lockstep: interrupted; all that was started is stopped\n");
    EXPECT_TRUE(Traced("cancelled"));
    EXPECT_TRUE(Traced("worker stops"));
    EXPECT_TRUE(Traced("coordinator stops"));
    EXPECT_TRUE(Eventually([&] { return AllEnded(); }));
    EXPECT_THAT(Left(), IsEmpty());
  }
}

TEST_F(RunCommandTest, ASignalWhileTheCoordinatorStartsStopsIt) {
  setenv("FAKE_PLAY", "mute", 1);
  const pid_t run = Start();
  ASSERT_TRUE(Eventually([&] { return Pids().size() == 1; }));
  kill(run, SIGINT);
  EXPECT_EQ(Wait(run), 128 + SIGINT);
  EXPECT_TRUE(Eventually([&] { return AllEnded(); }));
  EXPECT_THAT(Left(), IsEmpty());
}

TEST_F(RunCommandTest, ASecondSignalDoesNotWaitForTheStubborn) {
  SetWorker(kStubborn);
  const pid_t run = Start();
  ASSERT_TRUE(
      Eventually([&] { return Pids().size() == 2 && Traced("submitted"); }));
  const auto begin = std::chrono::steady_clock::now();
  kill(run, SIGINT);
  ASSERT_TRUE(Eventually([&] { return Traced("cancelled"); }));
  kill(run, SIGINT);

  EXPECT_EQ(Wait(run), 128 + SIGINT);

  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(9));
  EXPECT_TRUE(Eventually([&] { return AllEnded(); }));
}

TEST_F(RunCommandTest, NothingOutlivesARunThatIsKilled) {
  SetWorker(kStubborn);
  const pid_t run = Start({"--workers", "2"});
  ASSERT_TRUE(
      Eventually([&] { return Pids().size() == 3 && Traced("submitted"); }));
  EXPECT_FALSE(AllEnded());
  kill(run, SIGKILL);
  EXPECT_EQ(Wait(run), 128 + SIGKILL);
  EXPECT_TRUE(Eventually([&] { return AllEnded(); }));
}

}  // namespace
}  // namespace lockstep::cli
