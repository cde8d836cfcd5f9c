// A trainer, as its agent has it: a child process with a link and an output.
//
// Not thread-safe; made, used and destroyed on one thread, with whose end the
// trainer is killed too (worker/link/trainer_life.h).
#ifndef WORKER_AGENT_TRAINER_PROCESS_H_
#define WORKER_AGENT_TRAINER_PROCESS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/agent/output_lines.h"
#include "worker/link/agent_link.h"
#include "worker/link/unique_fd.h"

namespace lockstep {

// What to run.
struct TrainerCommand {
  // This program by default: also when its file was replaced meanwhile.
  std::string program = "/proc/self/exe";
  // argv[0] and following; `--link-fd N --agent-pid N` is appended.
  std::vector<std::string> arguments;
  // NAME=VALUE, in addition to the agent's own, which they replace.
  std::vector<std::string> environment;
};

class TrainerProcess {
 public:
  // Runs it in a process group of its own, with no descriptor but its link, its
  // output (a pipe, as standard output and standard error) and an empty input.
  //
  // Errors:
  //   Unavailable: the system refuses a process or a descriptor; later it may
  //     not.
  static absl::StatusOr<std::unique_ptr<TrainerProcess>> Spawn(
      const TrainerCommand& command);

  // Kills and reaps it.
  ~TrainerProcess();

  int64_t process_id() const { return process_id_; }
  AgentLink& link() { return *link_; }

  // Becomes readable when the process has died.
  int death_fd() const { return process_.get(); }

  // Its output; -1 once that has ended.
  int output_fd() const { return output_.get(); }

  // Reads some of its output; returns the lines that are complete.
  std::vector<std::string> ReadOutput();

  // Sends SIGKILL to its process group.  `why` is part of how it died, the
  // first of several.
  void Kill(const std::string& why);

  // Call when death_fd() is readable.  Ends what is left of its group, and
  // reads the rest of its output into `lines`.  Returns how it died: "signal 9
  // (Killed) by its agent: ...; last lines: ..." or "exit code 3; ...".  Waits
  // for nothing.
  std::string Reap(std::vector<std::string>& lines);

 private:
  TrainerProcess() = default;

  int64_t process_id_ = 0;
  bool reaped_ = false;
  std::string why_killed_;
  UniqueFd process_;  // A pidfd.
  UniqueFd output_;
  std::unique_ptr<AgentLink> link_;
  OutputLines output_lines_;
};

}  // namespace lockstep

#endif  // WORKER_AGENT_TRAINER_PROCESS_H_
