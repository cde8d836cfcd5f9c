// Child processes that end when this one does.
#ifndef CLI_DAEMON_H_
#define CLI_DAEMON_H_

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"

namespace lockstep::cli {

// Turns SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE and SIGCHLD into something to
// wait for.  Blocks them for the calling thread and for those it starts, so it
// must be made while there is no other thread.  Puts the old mask back.
class SignalWaiter {
 public:
  SignalWaiter();
  ~SignalWaiter();
  SignalWaiter(const SignalWaiter&) = delete;
  SignalWaiter& operator=(const SignalWaiter&) = delete;

  // Returns when a signal came, Wake() was called, or `timeout` has passed.
  void Wait(absl::Duration timeout);

  // Ends a Wait, this or the next.  Thread-safe.
  void Wake();

  // The last signal that asks this process to end; 0 if none came since it was
  // last taken.
  int TakeStop();

 private:
  int signals_ = -1;
  int event_ = -1;
  int stop_ = 0;
  sigset_t old_mask_;
};

// One child, in a process group of its own: signals from the terminal do not
// reach it, and whatever it starts can be ended with it.  The kernel kills it
// when the thread that started it ends, however that comes.
class Daemon {
 public:
  struct Options {
    // In messages: "lockstep-worker w1".
    std::string name;

    // Program (a path) and arguments.
    std::vector<std::string> command;

    // What it writes goes to the end of this file.
    std::string log_path;
  };

  // Errors:
  //   NotFound: there is no such program.
  //   Otherwise: as the system says.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(Options options);

  // Kills what is left of the group.
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  const std::string& name() const { return options_.name; }
  const std::string& log_path() const { return options_.log_path; }

  // How it ended: "exit code 1", "signal 9 (Killed)"; nothing while it lives.
  std::optional<std::string> HowItEnded();

  // Sends a signal to the group, if the child lives.
  void Signal(int signal);

 private:
  Daemon(Options options, pid_t pid)
      : options_(std::move(options)), pid_(pid) {}

  const Options options_;
  const pid_t pid_;
  std::optional<std::string> ended_;
};

// Asks all to end (SIGTERM), and kills those that have not after `patience`, or
// as soon as another stop signal comes.
void StopAll(const std::vector<Daemon*>& daemons, absl::Duration patience,
             SignalWaiter& waiter, Clock& clock);

// The last `count_max` lines of a file, each cut to 500 bytes; none if it
// cannot be read.
std::vector<std::string> LastLines(const std::string& path, int count_max);

}  // namespace lockstep::cli

#endif  // CLI_DAEMON_H_
