// lockstep-coordinator: queues jobs, places them on workers, and watches them.

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <iostream>
#include <memory>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/duration_flag.h"
#include "common/file_write.h"
#include "common/grpc_log.h"
#include "common/listen_address.h"
#include "common/log.h"
#include "common/status.h"
#include "common/version.h"
#include "coordinator/service/server.h"
#include "coordinator/service/shell.h"
#include "coordinator/store/store.h"

namespace lockstep {
namespace {

constexpr char kDescription[] =
    R"(Queues training jobs, places them on workers, and watches them.

Workers (lockstep-worker) connect here; so does the `lockstep` command. All that
must survive is in the store, a folder: after a crash or a kill, start the
coordinator again on the same store. Jobs train on without it in the meantime.)";

constexpr char kFooter[] =
    R"(Durations are numbers with a unit: 500ms, 3s, 1m30s.

Examples:
  On one machine:
    lockstep-coordinator --store ~/.lockstep/store
  For workers on other machines of a network that you trust:
    lockstep-coordinator --store /var/lib/lockstep --listen 0.0.0.0:7600 --insecure
  For a test, on any free port:
    lockstep-coordinator --store /tmp/store --listen 127.0.0.1:0 --port-file /tmp/port

Exit codes: 0 stopped by SIGTERM or SIGINT; 1 could not start, or the store
failed (start it again); 2 wrong command line.)";

struct Flags {
  HostPort listen;
  std::string port_file;
  bool insecure = false;
  StoreOptions store;
  CoordinatorOptions core;
};

std::string DurationText(absl::Duration duration) {
  return absl::FormatDuration(duration);
}

void AddDuration(CLI::App& app, const std::string& name, absl::Duration& value,
                 const std::string& help) {
  app.add_option_function<std::string>(
         name,
         [&value, name](const std::string& text) {
           const auto duration = ParseDurationFlag(text);
           if (!duration.ok()) {
             throw CLI::ValidationError(
                 name, std::string(duration.status().message()));
           }
           value = *duration;
         },
         help)
      ->type_name("DURATION")
      ->default_str(DurationText(value));
}

void AddCount(CLI::App& app, const std::string& name, int& value,
              const std::string& help) {
  app.add_option(name, value, help)
      ->type_name("COUNT")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
}

void AddFlags(CLI::App& app, Flags& flags) {
  flags.listen = {"127.0.0.1", 7600};
  app.add_option_function<std::string>(
         "--listen",
         [&flags](const std::string& text) {
           absl::StatusOr<HostPort> address = ParseHostPort(text);
           if (!address.ok()) {
             throw CLI::ValidationError(
                 "--listen", std::string(address.status().message()));
           }
           flags.listen = *address;
         },
         "Where clients and workers connect; port 0 takes any that is free")
      ->type_name("HOST:PORT")
      ->default_str(flags.listen.ToString());
  app.add_option("--store", flags.store.folder,
                 "Folder of the store; created if absent. One coordinator at a "
                 "time; on a local disk")
      ->type_name("FOLDER")
      ->required();
  app.add_option("--port-file", flags.port_file,
                 "Write the port to this file once connections are served")
      ->type_name("FILE");
  app.add_flag("--insecure", flags.insecure,
               "Allow an address that is not loopback: there is neither "
               "encryption nor authentication yet");

  const std::string timing = "Timing";
  CoordinatorOptions& core = flags.core;
  AddDuration(app, "--lease", core.lease,
              "A worker silent for this long may be replaced");
  AddDuration(app, "--forming-timeout", core.forming_timeout,
              "How long a generation may take until all its workers are "
              "prepared, and again until all train");
  AddDuration(app, "--step-bound", core.step_bound,
              "A worker silent beyond its lease still counts as alive after a "
              "step that its generation committed since it was last heard of: "
              "for ten times the longest step so far, at least the lease and "
              "at most this");
  AddDuration(app, "--reattach-window", core.reattach_window,
              "How long the workers of running jobs have to come back after a "
              "start of the coordinator [twice the lease]");
  app.get_option("--reattach-window")->default_str("");
  AddDuration(app, "--worker-backoff", core.worker_backoff,
              "A worker that failed a job is not used for this long, doubling "
              "with each such failure in a row");
  AddDuration(app, "--worker-backoff-max", core.worker_backoff_max,
              "The longest that doubling leads to");
  AddDuration(app, "--lost-worker-retention", core.lost_worker_retention,
              "How long a lost worker is shown");
  for (const char* name : {"--lease", "--forming-timeout", "--step-bound",
                           "--reattach-window", "--worker-backoff",
                           "--worker-backoff-max", "--lost-worker-retention"}) {
    app.get_option(name)->group(timing);
  }

  AddCount(app, "--worker-count-max", core.worker_count_max,
           "Workers admitted");
  AddCount(app, "--unfinished-job-max", core.unfinished_job_max,
           "Unfinished jobs admitted");
  AddCount(app, "--finished-job-max", core.finished_job_max,
           "Finished jobs kept; the oldest beyond it are forgotten");
  app.add_option("--step-row-max", flags.store.step_row_max,
                 "Step reports kept of a job, about 250 bytes each; the oldest "
                 "beyond it are forgotten")
      ->type_name("COUNT")
      ->check(CLI::Range(int64_t{10'000}, int64_t{1} << 40))
      ->capture_default_str();
  for (const char* name : {"--worker-count-max", "--unfinished-job-max",
                           "--finished-job-max", "--step-row-max"}) {
    app.get_option(name)->group("Limits");
  }
}

std::function<uint64_t()> RandomBits() {
  std::random_device device;
  std::seed_seq seed = {device(), device(), device(), device(),
                        device(), device(), device(), device()};
  return [generator = std::make_shared<std::mt19937_64>(seed)] {
    return (*generator)();
  };
}

// Until a signal to stop, or until the store has failed.
class StopEvent {
 public:
  // Before any thread starts: they inherit the mask.
  StopEvent() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    LS_CHECK(pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0);
    signals_ = signalfd(-1, &set, SFD_CLOEXEC);
    failure_ = eventfd(0, EFD_CLOEXEC);
    LS_CHECK(signals_ >= 0 && failure_ >= 0);
    signal(SIGPIPE, SIG_IGN);
  }
  ~StopEvent() {
    close(signals_);
    close(failure_);
  }

  // From any thread.
  void Fail() {
    const uint64_t one = 1;
    LS_CHECK(write(failure_, &one, sizeof one) == sizeof one);
  }

  // The signal's name; empty after Fail().
  std::string Wait() {
    pollfd files[] = {{signals_, POLLIN, 0}, {failure_, POLLIN, 0}};
    while (poll(files, 2, -1) < 0) LS_CHECK(errno == EINTR);
    if ((files[1].revents & POLLIN) != 0) return "";
    signalfd_siginfo info;
    LS_CHECK(read(signals_, &info, sizeof info) == sizeof info);
    return info.ssi_signo == SIGTERM ? "SIGTERM" : "SIGINT";
  }

 private:
  int signals_;
  int failure_;
};

absl::Status Run(const Flags& flags, StopEvent& stop) {
  Clock& clock = RealClock();
  // What can be known to fail leaves no store behind.
  RETURN_IF_ERROR(Annotate(ProbeListenAddress(flags.listen), "--listen"));
  if (!flags.port_file.empty()) {
    // One of an earlier run would be taken for ours.
    if (unlink(flags.port_file.c_str()) != 0 && errno != ENOENT) {
      return absl::ErrnoToStatus(
          errno, absl::StrCat("--port-file: ", flags.port_file));
    }
  }
  absl::StatusOr<std::unique_ptr<Store>> store = OpenStore(flags.store);
  if (!store.ok()) return Annotate(store.status(), "--store");

  Shell::Options shell_options;
  shell_options.core = flags.core;
  shell_options.random = RandomBits();
  shell_options.on_store_failure = [&stop](const absl::Status&) {
    stop.Fail();
  };
  ASSIGN_OR_RETURN(std::unique_ptr<Shell> shell,
                   Shell::Create(std::move(shell_options), **store, clock));

  SetGrpcLogEnabled(false);
  absl::StatusOr<std::unique_ptr<Server>> server =
      Server::Start({.listen = flags.listen,
                     .insecure = flags.insecure,
                     .keepalive = flags.core.lease},
                    *shell, **store, clock);
  SetGrpcLogEnabled(true);
  if (!server.ok()) return Annotate(server.status(), "--listen");
  HostPort bound = flags.listen;
  bound.port = (*server)->port();
  LOG(INFO) << "coordinator serves" << Field("address", bound.ToString())
            << Field("incarnation", shell->incarnation())
            << Field("store", flags.store.folder)
            << Field("lease", DurationText(flags.core.lease));
  if (!flags.port_file.empty()) {
    RETURN_IF_ERROR(Annotate(
        WriteFileAtomically(flags.port_file, absl::StrCat(bound.port, "\n")),
        "--port-file"));
  }

  const std::string signal = stop.Wait();
  if (signal.empty()) {
    (*server)->Stop();
    return absl::UnavailableError(
        "the store failed, as said above; what it holds is whole: make room or "
        "mend the disk, and start the coordinator again");
  }
  LOG(INFO) << "coordinator stops" << Field("signal", signal);
  (*server)->Stop();
  LOG(INFO) << "coordinator stopped";
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  CLI::App app(kDescription, "lockstep-coordinator");
  app.footer(kFooter);
  app.set_version_flag("--version", kVersion);
  Flags flags;
  AddFlags(app, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    std::cerr << "lockstep-coordinator: error: " << error.what()
              << "\nRun with --help for more information.\n";
    return 2;
  }
  if (const absl::Status status =
          RequireLoopbackUnless(flags.insecure, flags.listen);
      !status.ok()) {
    std::cerr << "lockstep-coordinator: error: --listen: " << status.message()
              << "\n";
    return 2;
  }
  if (app.count("--reattach-window") == 0) {
    // Twice the longer of the lease and the workers' longest wait between
    // attempts, a third of it.
    flags.core.reattach_window = 2 * flags.core.lease;
  }
  InitLog(argv[0]);
  InitGrpcLog();
  StopEvent stop;
  const absl::Status status = Run(flags, stop);
  if (status.ok()) return 0;
  LOG(ERROR) << "coordinator failed: " << status.message();
  return 1;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::Main(argc, argv); }
