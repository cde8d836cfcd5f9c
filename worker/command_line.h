// The command line of lockstep-worker.
#ifndef WORKER_COMMAND_LINE_H_
#define WORKER_COMMAND_LINE_H_

#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "worker/comm/collectives.h"
#include "worker/trainer/trainer_main.h"

namespace lockstep {

// What the daemon is to do; checked.
struct WorkerFlags {
  std::string coordinator = "127.0.0.1:7600";  // HOST:PORT.
  std::string name;                            // A worker name.
  std::string device = "cpu";
  int threads = 1;           // 1 to 1,024.
  int64_t memory_bytes = 0;  // That jobs may take; 0: what the device has.
  std::string listen_host = "127.0.0.1";
  Collectives collectives = Collectives::kAuto;
  bool insecure = false;
  absl::Duration start_timeout = absl::Seconds(60);
  absl::Duration abort_timeout = absl::Seconds(5);
  absl::Duration progress_timeout = absl::Minutes(10);
  absl::Duration name_taken_patience = absl::Seconds(10);
};

// Nothing is to be done but to say this and to end: help, a version, an error.
struct SayAndExit {
  std::string out;
  std::string err;
  int code = 0;
};

// What the machine gives where the line says nothing.
struct MachineDefaults {
  std::string host_name;
  int core_count = 1;
};

// `arguments`: argv, the program's name included.
std::variant<WorkerFlags, TrainerOptions, SayAndExit> ParseCommandLine(
    const std::vector<std::string>& arguments, const MachineDefaults& machine);

// argv of this program as the trainer of a daemon with these flags; what is the
// process's own (`--link-fd`, `--agent-pid`) is to be appended.
std::vector<std::string> TrainerArguments(const WorkerFlags& flags);

// The worker name that is most like `host_name`: small letters, digits, hyphens
// and dots, 63 at most; "worker" when nothing of it is left.
std::string WorkerNameOf(absl::string_view host_name);

}  // namespace lockstep

#endif  // WORKER_COMMAND_LINE_H_
