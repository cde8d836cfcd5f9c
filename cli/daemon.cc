#include "cli/daemon.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace lockstep::cli {
namespace {

constexpr size_t kLineBytesMax = 500;
constexpr int64_t kTailBytes = 64 << 10;

absl::Status SystemError(absl::string_view what, int error) {
  const std::string message = absl::StrCat(what, ": ", std::strerror(error));
  return error == ENOENT ? absl::NotFoundError(message)
                         : absl::UnknownError(message);
}

// In the child, between fork and exec: system calls only, since another thread
// may have held any lock at the fork.
[[noreturn]] void BecomeDaemon(char* const* arguments, pid_t parent, int null,
                               int log, int report) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have ended before the kernel was asked.
  if (getppid() != parent) _exit(127);
  if (dup2(null, STDIN_FILENO) >= 0 && dup2(log, STDOUT_FILENO) >= 0 &&
      dup2(log, STDERR_FILENO) >= 0 &&
      close_range(3, ~0U, CLOSE_RANGE_CLOEXEC) == 0) {
    sigset_t none;
    sigemptyset(&none);
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    execv(arguments[0], arguments);
  }
  const int error = errno;
  const ssize_t written = write(report, &error, sizeof error);
  _exit(written == sizeof error ? 127 : 126);
}

}  // namespace

SignalWaiter::SignalWaiter() {
  sigset_t mask;
  sigemptyset(&mask);
  for (const int signal :
       {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGCHLD}) {
    sigaddset(&mask, signal);
  }
  LS_CHECK(pthread_sigmask(SIG_BLOCK, &mask, &old_mask_) == 0);
  signals_ = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
  event_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  LS_CHECK(signals_ >= 0 && event_ >= 0);
}

SignalWaiter::~SignalWaiter() {
  // One that came too late to matter must not end the process now.
  signalfd_siginfo info;
  while (read(signals_, &info, sizeof info) == sizeof info) {
  }
  close(signals_);
  close(event_);
  pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
}

void SignalWaiter::Wait(absl::Duration timeout) {
  pollfd files[] = {{signals_, POLLIN, 0}, {event_, POLLIN, 0}};
  const int64_t milliseconds = std::clamp<int64_t>(
      absl::ToInt64Milliseconds(timeout + absl::Nanoseconds(999'999)), 0,
      1'000'000);
  poll(files, 2, static_cast<int>(milliseconds));
  signalfd_siginfo info;
  while (read(signals_, &info, sizeof info) == sizeof info) {
    if (info.ssi_signo != SIGCHLD) stop_ = static_cast<int>(info.ssi_signo);
  }
  eventfd_t count;
  eventfd_read(event_, &count);
}

void SignalWaiter::Wake() { eventfd_write(event_, 1); }

int SignalWaiter::TakeStop() { return std::exchange(stop_, 0); }

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(Options options) {
  const std::string& program = options.command[0];
  const int log = open(options.log_path.c_str(),
                       O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log < 0) return SystemError(options.log_path, errno);
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  int report[2];
  if (null < 0 || pipe2(report, O_CLOEXEC) != 0) {
    const int error = errno;
    close(log);
    if (null >= 0) close(null);
    return SystemError(absl::StrCat("cannot start ", program), error);
  }
  std::vector<char*> arguments;
  for (std::string& argument : options.command) {
    arguments.push_back(argument.data());
  }
  arguments.push_back(nullptr);

  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) BecomeDaemon(arguments.data(), parent, null, log, report[1]);
  int error = pid < 0 ? errno : 0;
  close(log);
  close(null);
  close(report[1]);
  // The pipe ends without a word when the program runs.
  if (pid > 0) {
    int code = 0;
    while (read(report[0], &code, sizeof code) < 0 && errno == EINTR) {
    }
    error = code;
  }
  close(report[0]);
  if (error != 0) {
    if (pid > 0) waitpid(pid, nullptr, 0);
    return SystemError(absl::StrCat("cannot start ", program), error);
  }
  return std::unique_ptr<Daemon>(new Daemon(std::move(options), pid));
}

Daemon::~Daemon() {
  if (ended_) return;
  // While the child is not waited for, its number is not given to another.
  kill(-pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::optional<std::string> Daemon::HowItEnded() {
  if (ended_) return ended_;
  siginfo_t info;
  info.si_pid = 0;
  if (waitid(P_PID, static_cast<id_t>(pid_), &info,
             WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid == 0) {
    return std::nullopt;
  }
  ended_ = info.si_code == CLD_EXITED
               ? absl::StrCat("exit code ", info.si_status)
               : absl::StrCat("signal ", info.si_status, " (",
                              strsignal(info.si_status), ")");
  // What it started must not outlive it.
  kill(-pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  return ended_;
}

void Daemon::Signal(int signal) {
  if (!HowItEnded()) kill(-pid_, signal);
}

void StopAll(const std::vector<Daemon*>& daemons, absl::Duration patience,
             SignalWaiter& waiter, Clock& clock) {
  for (Daemon* daemon : daemons) daemon->Signal(SIGTERM);
  const Instant deadline = clock.Now() + patience;
  const auto all_ended = [&] {
    return std::all_of(daemons.begin(), daemons.end(), [](Daemon* daemon) {
      return daemon->HowItEnded().has_value();
    });
  };
  while (!all_ended()) {
    const absl::Duration left = deadline - clock.Now();
    if (left <= absl::ZeroDuration() || waiter.TakeStop() != 0) break;
    waiter.Wait(left);
  }
  for (Daemon* daemon : daemons) daemon->Signal(SIGKILL);
  while (!all_ended()) waiter.Wait(absl::Seconds(1));
}

std::vector<std::string> LastLines(const std::string& path, int count_max) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(0, std::ios::end);
  const int64_t size = file.tellg();
  file.seekg(std::max<int64_t>(0, size - kTailBytes));
  std::deque<std::string> lines;
  std::string line;
  while (std::getline(file, line)) {
    if (line.size() > kLineBytesMax) line.resize(kLineBytesMax);
    lines.push_back(std::move(line));
    if (static_cast<int>(lines.size()) > count_max) lines.pop_front();
  }
  return {lines.begin(), lines.end()};
}

}  // namespace lockstep::cli
