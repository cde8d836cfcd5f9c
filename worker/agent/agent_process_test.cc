// The worker as a process: how it ends, and what it leaves behind.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/agent/fake_coordinator.h"
#include "worker/link/device_lock.h"
#include "worker/link/unique_fd.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Memory = FakeCoordinator::Memory;

// A worker process, its standard error on a pipe.
class WorkerProcess {
 public:
  // `arguments` after the program's name.
  explicit WorkerProcess(const std::vector<std::string>& arguments,
                         const std::string& behaviour = "") {
    // Orphans come to this process, so that their end can be waited for.
    EXPECT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    int fds[2];
    EXPECT_EQ(pipe2(fds, O_CLOEXEC), 0);
    stderr_ = UniqueFd(fds[0]);
    UniqueFd theirs(fds[1]);
    const std::string program = absl::StrCat(
        std::getenv("TEST_SRCDIR"), "/lockstep/worker/agent/fake_worker");
    std::vector<std::string> words = {program};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    EXPECT_EQ(setenv("FAKE_TRAINER", behaviour.c_str(), 1), 0);
    // Nothing but system calls between these: other threads may hold locks.
    pid_ = fork();
    EXPECT_GE(pid_, 0);
    if (pid_ == 0) {
      dup2(theirs.get(), STDERR_FILENO);
      execv(program.c_str(), argv.data());
      _exit(127);
    }
  }

  // Kills it, and waits for the end of all that it leaves, which must come by
  // itself.
  ~WorkerProcess() {
    if (pid_ > 0) kill(pid_, SIGKILL);
    while (waitpid(-1, nullptr, 0) > 0) {
    }
  }

  void Signal(int signal) { EXPECT_EQ(kill(pid_, signal), 0); }

  // Reads what it says until `text` has come; returns all since the beginning.
  const std::string& ReadUntil(const std::string& text) {
    while (!absl::StrContains(said_, text)) {
      if (!ReadSome()) {
        ADD_FAILURE() << "it did not say \"" << text << "\", but: " << said_;
        break;
      }
    }
    return said_;
  }

  // Its trainer's process id, once it has said that it is ready.
  pid_t TrainerPid() {
    const std::string& said = ReadUntil("trainer ready");
    const size_t at = said.rfind(" pid=");
    int pid = 0;
    EXPECT_TRUE(absl::SimpleAtoi(
        said.substr(at + 5, said.find_first_of(" \n", at + 5) - at - 5), &pid))
        << said;
    return pid;
  }

  // Waits for its end, and returns its exit code, or minus a signal.
  int Wait() {
    while (ReadSome()) {
    }
    int status = 0;
    EXPECT_EQ(waitpid(std::exchange(pid_, -1), &status, 0) > 0, true);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  }

  const std::string& said() const { return said_; }

 private:
  bool ReadSome() {
    pollfd ready{stderr_.get(), POLLIN, 0};
    if (poll(&ready, 1, 60'000) != 1) return false;
    char bytes[4096];
    const ssize_t n = read(stderr_.get(), bytes, sizeof bytes);
    if (n <= 0) return false;
    said_.append(bytes, static_cast<size_t>(n));
    return true;
  }

  pid_t pid_ = -1;
  UniqueFd stderr_;
  std::string said_;
};

std::vector<std::string> Arguments(const FakeCoordinator& coordinator) {
  return {
      "--coordinator", coordinator.address(), "--name", "w1", "--threads", "1"};
}

bool TrainerIsReady(const Memory& memory) {
  return FakeCoordinator::Last(memory).trainer_ready;
}

TEST(AgentProcessTest, DescribesItsDevice) {
  FakeCoordinator coordinator;
  WorkerProcess worker(Arguments(coordinator));

  ASSERT_TRUE(coordinator.WaitUntil(TrainerIsReady));

  const Hello hello = coordinator.memory().hellos.at(0);
  EXPECT_EQ(hello.worker, WorkerId{"w1"});
  EXPECT_EQ(hello.device.kind, "cpu");
  EXPECT_THAT(hello.device.numeric_class, HasSubstr("cpu/"));
  EXPECT_EQ(hello.device.thread_count, 1);
  EXPECT_GT(hello.device.memory_bytes, 1 << 20);
  EXPECT_NE(hello.device.model, "");
  EXPECT_EQ(hello.device.version, "0.1.0");
}

TEST(AgentProcessTest, KilledItLeavesNoTrainer) {
  FakeCoordinator coordinator;
  WorkerProcess worker(Arguments(coordinator));
  const pid_t trainer = worker.TrainerPid();

  worker.Signal(SIGKILL);

  // Of the end of its link or by the system, whichever comes first.
  EXPECT_EQ(worker.Wait(), -SIGKILL);
  EXPECT_EQ(waitpid(trainer, nullptr, 0), trainer);
}

// A stopped trainer sees neither the end of its link nor anything else.
TEST(AgentProcessTest, KilledItLeavesNoTrainerThatIsStopped) {
  FakeCoordinator coordinator;
  WorkerProcess worker(Arguments(coordinator), "stop");
  const pid_t trainer = worker.TrainerPid();

  worker.Signal(SIGKILL);

  EXPECT_EQ(worker.Wait(), -SIGKILL);
  EXPECT_EQ(waitpid(trainer, nullptr, 0), trainer);
}

class StopSignalTest : public ::testing::TestWithParam<int> {};

TEST_P(StopSignalTest, EndsItCleanlyAndLeavesNothing) {
  FakeCoordinator coordinator;
  WorkerProcess worker(Arguments(coordinator), "child");
  const pid_t trainer = worker.TrainerPid();
  ASSERT_TRUE(coordinator.WaitUntil(TrainerIsReady));

  worker.Signal(GetParam());

  EXPECT_EQ(worker.Wait(), 0);
  EXPECT_TRUE(
      coordinator.WaitUntil([](const Memory& m) { return m.left_count == 1; }));
  EXPECT_EQ(coordinator.memory().broken_count, 0);
  // It has reaped the trainer itself; the trainer's child was killed too, and
  // has come to this process.
  EXPECT_EQ(waitpid(trainer, nullptr, WNOHANG), -1);
  int status = 0;
  ASSERT_GT(waitpid(-1, &status, 0), 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

INSTANTIATE_TEST_SUITE_P(All, StopSignalTest,
                         ::testing::Values(SIGTERM, SIGINT), [](const auto& p) {
                           return p.param == SIGTERM ? "Term" : "Int";
                         });

TEST(AgentProcessTest, ATakenNameIsExitCodeOneAndTheCoordinatorsWords) {
  FakeCoordinator coordinator;
  coordinator.AnswerHellosWith(absl::AlreadyExistsError(
      "the name w1 belongs to a live worker, process 7 on host"));
  std::vector<std::string> arguments = Arguments(coordinator);
  arguments.push_back("--name-taken-patience=100ms");
  WorkerProcess worker(arguments);

  EXPECT_EQ(worker.Wait(), 1);

  EXPECT_THAT(worker.said(), HasSubstr("ERROR worker must end"));
  EXPECT_THAT(worker.said(),
              HasSubstr("lockstep-worker: error: the name w1 belongs to a live "
                        "worker, process 7 on host\n"));
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
}

TEST(AgentProcessTest, AnUnreachableCoordinatorIsSaidOnceAndAskedForAgain) {
  int port = 0;
  {
    FakeCoordinator gone;
    port = gone.port();
  }
  WorkerProcess worker({"--coordinator", absl::StrCat("127.0.0.1:", port),
                        "--name", "w1", "--threads", "1"});

  worker.ReadUntil("no contact with the coordinator");
  EXPECT_THAT(worker.said(), HasSubstr("UNAVAILABLE"));
  worker.Signal(SIGTERM);

  EXPECT_EQ(worker.Wait(), 0);
}

TEST(AgentProcessTest, AWrongCommandLineIsExitCodeTwo) {
  WorkerProcess worker({"--threads", "0"});

  EXPECT_EQ(worker.Wait(), 2);
  EXPECT_THAT(worker.said(), HasSubstr("lockstep-worker: error: --threads"));
}

TEST(AgentProcessTest, ANewTrainerWaitsForAnOldOneToLeaveTheDevice) {
  FakeCoordinator coordinator;
  // This process plays the old trainer.
  auto old = DeviceLock::Acquire(absl::StrCat("cpu w1 ", coordinator.address()),
                                 absl::ZeroDuration(), RealClock(),
                                 [](const std::string&) {});
  ASSERT_TRUE(old.ok());
  WorkerProcess worker(Arguments(coordinator));

  worker.ReadUntil(absl::StrCat(
      "waiting for an old trainer of this worker to leave the device: process ",
      getpid()));
  EXPECT_THAT(worker.said(), Not(HasSubstr("trainer ready")));
  EXPECT_FALSE(TrainerIsReady(coordinator.memory()));
  { const auto gone = *std::move(old); }

  EXPECT_TRUE(coordinator.WaitUntil(TrainerIsReady));
}

TEST(AgentProcessTest, ATrainerThatWaitsInVainSaysForWhom) {
  FakeCoordinator coordinator;
  const auto old = DeviceLock::Acquire(
      absl::StrCat("cpu w1 ", coordinator.address()), absl::ZeroDuration(),
      RealClock(), [](const std::string&) {});
  ASSERT_TRUE(old.ok());
  std::vector<std::string> arguments = Arguments(coordinator);
  arguments.push_back("--start-timeout=2s");
  WorkerProcess worker(arguments);

  ASSERT_TRUE(coordinator.WaitUntil([](const Memory& m) {
    return FakeCoordinator::Last(m).trainer_death_count > 0;
  }));

  EXPECT_THAT(FakeCoordinator::Last(coordinator.memory()).last_trainer_death,
              HasSubstr(absl::StrCat("process ", getpid())));
}

// Standard error on a full pipe, and a trainer that prints without end.
TEST(AgentProcessTest, BeatsGoOnThoughNobodyReadsWhatItSays) {
  FakeCoordinator coordinator;
  WorkerProcess worker(Arguments(coordinator), "spam");
  ASSERT_TRUE(coordinator.WaitUntil(TrainerIsReady));
  const size_t before = coordinator.memory().statuses.size();

  EXPECT_TRUE(coordinator.WaitUntil(
      [&](const Memory& m) { return m.statuses.size() >= before + 10; }));

  EXPECT_EQ(coordinator.memory().hellos.size(), 1u);
  worker.Signal(SIGTERM);
  EXPECT_TRUE(
      coordinator.WaitUntil([](const Memory& m) { return m.left_count == 1; }));
}

}  // namespace
}  // namespace lockstep
