#include "worker/agent/trainer_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace lockstep {
namespace {

constexpr int kLinkFd = 3;  // In the trainer.

// What its output may be after its death: a pipe's worth, and more if a
// descendant that left its group goes on writing.
constexpr int kLastReadsMax = 64;

// How long the destructor waits for the end of what it has killed.  One that
// sits in a driver call dies when that returns, with nobody to wait for it.
constexpr int kDeathMilliseconds = 5000;

absl::Status SystemError(const char* call, int error) {
  return absl::UnavailableError(absl::StrCat(
      "the trainer was not started: ", call, ": ", std::strerror(error)));
}

// glibc 2.36 declares pidfd_open() for C alone.
int PidfdOpen(pid_t process) {
  return static_cast<int>(syscall(SYS_pidfd_open, process, 0));
}

// The agent's environment with `changes`.
std::vector<std::string> Environment(const std::vector<std::string>& changes) {
  std::vector<std::string> all = changes;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const absl::string_view text = *entry;
    const absl::string_view name = text.substr(0, text.find('=') + 1);
    bool replaced = false;
    for (const std::string& change : changes) {
      replaced |= absl::StartsWith(change, name);
    }
    if (!replaced) all.emplace_back(text);
  }
  return all;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& s : strings) pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

class SpawnActions {
 public:
  SpawnActions() { LS_CHECK(posix_spawn_file_actions_init(&actions_) == 0); }
  ~SpawnActions() { posix_spawn_file_actions_destroy(&actions_); }
  posix_spawn_file_actions_t* get() { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_;
};

class SpawnAttributes {
 public:
  SpawnAttributes() { LS_CHECK(posix_spawnattr_init(&attributes_) == 0); }
  ~SpawnAttributes() { posix_spawnattr_destroy(&attributes_); }
  posix_spawnattr_t* get() { return &attributes_; }

 private:
  posix_spawnattr_t attributes_;
};

std::string HowItEnded(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const int signal = WTERMSIG(wait_status);
    return absl::StrCat("signal ", signal, " (", strsignal(signal), ")");
  }
  return absl::StrCat("exit code ", WEXITSTATUS(wait_status));
}

}  // namespace

absl::StatusOr<std::unique_ptr<TrainerProcess>> TrainerProcess::Spawn(
    const TrainerCommand& command) {
  LS_CHECK(!command.arguments.empty());
  int link[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, link) != 0) {
    return SystemError("socketpair", errno);
  }
  UniqueFd ours(link[0]);
  UniqueFd theirs(link[1]);
  int output[2];
  if (pipe2(output, O_CLOEXEC) != 0) return SystemError("pipe", errno);
  UniqueFd reads(output[0]);
  UniqueFd writes(output[1]);
  // dup2 below goes from these to 0..3, one after the other.
  LS_CHECK(theirs.get() >= kLinkFd && writes.get() >= kLinkFd);
  LS_CHECK(fcntl(reads.get(), F_SETFL, O_NONBLOCK) == 0);

  SpawnActions actions;
  const auto add = [&](int rc) { LS_CHECK(rc == 0); };
  add(posix_spawn_file_actions_addopen(actions.get(), 0, "/dev/null", O_RDONLY,
                                       0));
  add(posix_spawn_file_actions_adddup2(actions.get(), writes.get(), 1));
  add(posix_spawn_file_actions_adddup2(actions.get(), writes.get(), 2));
  add(posix_spawn_file_actions_adddup2(actions.get(), theirs.get(), kLinkFd));
  add(posix_spawn_file_actions_addclosefrom_np(actions.get(), kLinkFd + 1));

  // Its own group, so that all of it can be killed, and a Ctrl-C on a terminal
  // reaches the agent alone; and signals as a new program expects them.
  SpawnAttributes attributes;
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  add(posix_spawnattr_setpgroup(attributes.get(), 0));
  add(posix_spawnattr_setsigmask(attributes.get(), &none));
  add(posix_spawnattr_setsigdefault(attributes.get(), &all));
  add(posix_spawnattr_setflags(attributes.get(), POSIX_SPAWN_SETPGROUP |
                                                     POSIX_SPAWN_SETSIGMASK |
                                                     POSIX_SPAWN_SETSIGDEF));

  std::vector<std::string> arguments = command.arguments;
  for (std::string argument :
       {std::string("--link-fd"), absl::StrCat(kLinkFd),
        std::string("--agent-pid"), absl::StrCat(getpid())}) {
    arguments.push_back(std::move(argument));
  }
  std::vector<std::string> environment = Environment(command.environment);
  pid_t child = 0;
  // As vfork: nothing of this process is copied, and a failing exec is said.
  const int error = posix_spawn(&child, command.program.c_str(), actions.get(),
                                attributes.get(), Pointers(arguments).data(),
                                Pointers(environment).data());
  if (error != 0) return SystemError(command.program.c_str(), error);

  std::unique_ptr<TrainerProcess> trainer(new TrainerProcess);
  trainer->process_id_ = child;
  trainer->process_ = UniqueFd(PidfdOpen(child));
  if (!trainer->process_.has_value()) {
    const int why = errno;
    return SystemError("pidfd_open", why);  // Its destructor kills it.
  }
  trainer->output_ = std::move(reads);
  trainer->link_ = std::make_unique<AgentLink>(std::move(ours));
  return trainer;
}

TrainerProcess::~TrainerProcess() {
  if (reaped_) return;
  Kill("");
  if (process_.has_value()) {
    pollfd death{process_.get(), POLLIN, 0};
    while (poll(&death, 1, kDeathMilliseconds) < 0 && errno == EINTR) {
    }
  }
  waitpid(static_cast<pid_t>(process_id_), nullptr, WNOHANG);
}

std::vector<std::string> TrainerProcess::ReadOutput() {
  char bytes[16 << 10];
  const ssize_t n = read(output_.get(), bytes, sizeof bytes);
  if (n > 0) return output_lines_.Append({bytes, static_cast<size_t>(n)});
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return {};
  output_.Close();
  return output_lines_.Finish();
}

void TrainerProcess::Kill(const std::string& why) {
  if (why_killed_.empty()) why_killed_ = why;
  // Not reaped yet, so the number is still its own.
  LS_CHECK(!reaped_);
  kill(-static_cast<pid_t>(process_id_), SIGKILL);
}

std::string TrainerProcess::Reap(std::vector<std::string>& lines) {
  LS_CHECK(!reaped_);
  // Until it is reaped, no other group can have its number.
  kill(-static_cast<pid_t>(process_id_), SIGKILL);
  for (int i = 0; i < kLastReadsMax && output_.has_value(); ++i) {
    for (std::string& line : ReadOutput()) lines.push_back(std::move(line));
  }
  for (std::string& line : output_lines_.Finish()) {
    lines.push_back(std::move(line));
  }
  int status = 0;
  while (waitpid(static_cast<pid_t>(process_id_), &status, 0) < 0) {
    LS_CHECK(errno == EINTR);
  }
  reaped_ = true;
  std::string how = HowItEnded(status);
  if (!why_killed_.empty() && WIFSIGNALED(status) &&
      WTERMSIG(status) == SIGKILL) {
    absl::StrAppend(&how, " by its agent: ", why_killed_);
  }
  const std::string last = output_lines_.Last();
  if (!last.empty()) absl::StrAppend(&how, "; last lines: ", last);
  return how;
}

}  // namespace lockstep
