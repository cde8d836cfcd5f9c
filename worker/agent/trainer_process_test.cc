#include "worker/agent/trainer_process.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// A shell script as the trainer.  `$1 $2 ...` is `--link-fd 3 --agent-pid N`.
TrainerCommand Script(const std::string& script) {
  return {.program = "/bin/sh", .arguments = {"sh", "-c", script, "trainer"}};
}

std::unique_ptr<TrainerProcess> Spawn(const TrainerCommand& command) {
  auto process = TrainerProcess::Spawn(command);
  EXPECT_TRUE(process.ok()) << process.status();
  return *std::move(process);
}

// Reads its output until a line has come.
std::string ReadLine(TrainerProcess& process) {
  for (;;) {
    pollfd output{process.output_fd(), POLLIN, 0};
    EXPECT_EQ(poll(&output, 1, 60'000), 1);
    const auto lines = process.ReadOutput();
    if (!lines.empty() || process.output_fd() < 0) {
      return lines.empty() ? "" : lines[0];
    }
  }
}

struct End {
  std::string how;
  std::vector<std::string> lines;
};

End WaitForEnd(TrainerProcess& process) {
  pollfd death{process.death_fd(), POLLIN, 0};
  EXPECT_EQ(poll(&death, 1, 60'000), 1);
  End end;
  end.how = process.Reap(end.lines);
  return end;
}

End RunScript(const std::string& script) {
  return WaitForEnd(*Spawn(Script(script)));
}

TEST(TrainerProcessTest, AnExitIsTextWithTheLastLinesOfBothOutputs) {
  const End end = RunScript("echo out; echo err >&2; printf half; exit 3");

  EXPECT_EQ(end.how, "exit code 3; last lines: out | err | half");
  EXPECT_THAT(end.lines, ElementsAre("out", "err", "half"));
}

TEST(TrainerProcessTest, ASignalIsTextToo) {
  EXPECT_EQ(RunScript("kill -SEGV $$").how, "signal 11 (Segmentation fault)");
}

TEST(TrainerProcessTest, WhoKilledItAndWhyIsSaid) {
  const auto process = Spawn(Script("echo up; while :; do :; done"));
  EXPECT_EQ(ReadLine(*process), "up");

  process->Kill("the first reason");
  process->Kill("another");

  EXPECT_EQ(WaitForEnd(*process).how,
            "signal 9 (Killed) by its agent: the first reason; "
            "last lines: up");
}

TEST(TrainerProcessTest, ADeathThatWasNotTheKillsIsNotTakenForIt) {
  const auto process = Spawn(Script("exit 4"));
  pollfd death{process->death_fd(), POLLIN, 0};
  ASSERT_EQ(poll(&death, 1, 60'000), 1);

  process->Kill("too late");

  EXPECT_EQ(WaitForEnd(*process).how, "exit code 4");
}

TEST(TrainerProcessTest, KillingItKillsItsWholeGroup) {
  // Orphans come to this process, so that their end can be waited for.
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  const auto process =
      Spawn(Script("sleep 1000 & echo $!; while :; do :; done"));
  int child = 0;
  ASSERT_TRUE(absl::SimpleAtoi(ReadLine(*process), &child));

  process->Kill("");
  WaitForEnd(*process);

  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

TEST(TrainerProcessTest, ItsChildrenEndWithItHoweverItEnds) {
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  const auto process = Spawn(Script("sleep 1000 & echo $!; exit 0"));
  int child = 0;
  ASSERT_TRUE(absl::SimpleAtoi(ReadLine(*process), &child));

  // The child holds the output, too: its end is not waited for.
  const End end = WaitForEnd(*process);

  EXPECT_THAT(end.how, HasSubstr("exit code 0"));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

TEST(TrainerProcessTest, TheDestructorLeavesNothing) {
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  auto process = Spawn(Script("sleep 1000 & echo $!; wait"));
  int child = 0;
  ASSERT_TRUE(absl::SimpleAtoi(ReadLine(*process), &child));
  const auto pid = static_cast<pid_t>(process->process_id());

  process.reset();

  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_EQ(waitpid(pid, nullptr, WNOHANG), -1);
}

TEST(TrainerProcessTest, ItHasNoDescriptorsButItsOwn) {
  int extra[2];
  ASSERT_EQ(pipe(extra), 0);  // Without O_CLOEXEC, as a library might.

  // The list itself is descriptor 4 while it is made.
  const End end = RunScript("ls -x /proc/self/fd; readlink /proc/self/fd/0");

  EXPECT_THAT(end.lines, ElementsAre("0  1  2  3  4", "/dev/null"));
  close(extra[0]);
  close(extra[1]);
}

TEST(TrainerProcessTest, ItsSignalsAreThoseOfANewProgram) {
  sigset_t blocked;
  sigset_t before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &blocked, &before), 0);
  const auto ignored = signal(SIGPIPE, SIG_IGN);

  const End end =
      RunScript("grep -E 'SigBlk|SigIgn' /proc/self/status | cut -f 2");

  ASSERT_THAT(end.lines, SizeIs(2));
  EXPECT_EQ(std::stoull(end.lines[0], nullptr, 16), 0u) << "blocked";
  // But for the two that the C library keeps for itself, 32 and 33.
  EXPECT_EQ(std::stoull(end.lines[1], nullptr, 16) & ~(uint64_t{3} << 31), 0u)
      << "ignored";
  signal(SIGPIPE, ignored);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST(TrainerProcessTest, ItsEnvironmentIsOursWithChanges) {
  ASSERT_EQ(setenv("OMP_NUM_THREADS", "64", 1), 0);
  ASSERT_EQ(setenv("LS_KEPT", "as it was", 1), 0);
  TrainerCommand command =
      Script("env | grep -c OMP_NUM; echo $OMP_NUM_THREADS $LS_KEPT");
  command.environment = {"OMP_NUM_THREADS=1"};

  const auto process = Spawn(command);

  EXPECT_THAT(WaitForEnd(*process).lines, ElementsAre("1", "1 as it was"));
}

TEST(TrainerProcessTest, ItIsToldItsLinkAndItsAgent) {
  const End end = RunScript("echo $@; [ -S /proc/self/fd/3 ] && echo socket");

  EXPECT_THAT(end.lines,
              ElementsAre(absl::StrCat("--link-fd 3 --agent-pid ", getpid()),
                          "socket"));
}

TEST(TrainerProcessTest, AProgramThatIsNotThereIsAnErrorWithItsName) {
  const auto process = TrainerProcess::Spawn(
      {.program = "/nowhere/lockstep-worker", .arguments = {"x"}});

  EXPECT_EQ(process.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(process.status().message()),
              HasSubstr("/nowhere/lockstep-worker: No such file"));
}

TEST(TrainerProcessTest, MoreOutputThanAPipeHoldsIsAllPassedOn) {
  const auto process =
      Spawn(Script("i=0; while [ $i -lt 20000 ]; do echo line $i; "
                   "i=$((i+1)); done"));
  size_t count = 0;
  while (process->output_fd() >= 0) {
    pollfd output{process->output_fd(), POLLIN, 0};
    ASSERT_EQ(poll(&output, 1, 60'000), 1);
    count += process->ReadOutput().size();
  }

  EXPECT_EQ(count, 20'000u);
  EXPECT_THAT(WaitForEnd(*process).how, HasSubstr("| line 19999"));
}

}  // namespace
}  // namespace lockstep
