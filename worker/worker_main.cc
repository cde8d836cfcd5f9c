#include "worker/worker_main.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/listen_address.h"
#include "common/log.h"
#include "common/status.h"
#include "common/version.h"
#include "kernels/device.h"
#include "worker/agent/agent.h"
#include "worker/command_line.h"
#include "worker/device_rates.h"

namespace lockstep {
namespace {

constexpr int kExitUsage = 2;

// How long the worker waits for its rates before it registers without.
constexpr absl::Duration kMeasureMax = absl::Seconds(10);

// Whom a signal stops.
std::atomic<Agent*> stopped_by_signal{nullptr};
static_assert(std::atomic<Agent*>::is_always_lock_free);

void OnSignal(int) {
  const int saved = errno;
  if (Agent* agent = stopped_by_signal.load(); agent != nullptr) agent->Stop();
  errno = saved;
}

void HandleSignals() {
  struct sigaction action {};
  action.sa_handler = OnSignal;
  // The second one ends the process as if nobody had asked, whatever it waits
  // for; the trainer dies with it.
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  // A log that nobody reads is no reason to end.
  signal(SIGPIPE, SIG_IGN);
}

std::string HostName() {
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) != 0) return "";
  return name;
}

DeviceRates Measure(const WorkerFlags& flags) {
  const auto rates = MeasureRatesApart({.threads = flags.threads,
                                        .listen_host = flags.listen_host,
                                        .collectives = flags.collectives},
                                       kMeasureMax);
  if (rates.ok()) return *rates;
  LOG(WARNING) << "plans will not predict times for this worker, whose rates "
                  "cannot be measured"
               << Field("reason", rates.status().message());
  return {};
}

absl::StatusOr<DeviceDescription> Describe(const WorkerFlags& flags) {
  // One thread: it is asked what it is, not to compute.
  ASSIGN_OR_RETURN(const std::unique_ptr<kernels::Device> device,
                   kernels::CreateCpuDevice(1, flags.memory_bytes));
  return DeviceDescription{.kind = flags.device,
                           .model = device->model_name(),
                           .numeric_class = device->numeric_class(),
                           .has_bfloat16 = device->has_bfloat16(),
                           .memory_bytes = device->memory_bytes(),
                           .thread_count = flags.threads,
                           .host = HostName(),
                           .process_id = getpid(),
                           .version = kVersion,
                           .rates = Measure(flags)};
}

absl::Status RunAgent(const WorkerFlags& flags) {
  // Else the first job that comes here would pay for it.
  if (const absl::Status status = ProbeListenAddress({flags.listen_host, 0});
      !status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--listen-host: ", status.message()));
  }
  Clock& clock = RealClock();
  Agent::Options options;
  options.core.worker = {flags.name};
  options.core.incarnation = {absl::ToUnixNanos(clock.WallNow())};
  ASSIGN_OR_RETURN(options.core.device, Describe(flags));
  options.core.start_timeout = flags.start_timeout;
  options.core.abort_timeout = flags.abort_timeout;
  options.core.progress_timeout = flags.progress_timeout;
  options.core.name_taken_patience = flags.name_taken_patience;
  options.stream.coordinator = flags.coordinator;
  options.trainer.arguments = TrainerArguments(flags);
  // Our own threads compute; a library's would change bits and fight for cores.
  options.trainer.environment = {"OMP_NUM_THREADS=1"};
  ASSIGN_OR_RETURN(const std::unique_ptr<Agent> agent,
                   Agent::Create(std::move(options), clock));
  stopped_by_signal = agent.get();
  HandleSignals();
  const absl::Status status = agent->Run();
  stopped_by_signal = nullptr;
  return status;
}

}  // namespace

int WorkerMain(int argc, char** argv,
               int (*trainer_main)(const TrainerOptions& options)) {
  // What is opened later must not become standard output.
  for (int fd = 0; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) < 0) return 1;
  }
  const MachineDefaults machine{
      .host_name = HostName(),
      .core_count = static_cast<int>(std::thread::hardware_concurrency())};
  const auto line =
      ParseCommandLine(std::vector<std::string>(argv, argv + argc), machine);
  if (const auto* end = std::get_if<SayAndExit>(&line)) {
    std::fputs(end->out.c_str(), stdout);
    std::fputs(end->err.c_str(), stderr);
    return end->code;
  }
  InitLog(argv[0]);
  if (const auto* trainer = std::get_if<TrainerOptions>(&line)) {
    return trainer_main(*trainer);
  }
  const absl::Status status = RunAgent(std::get<WorkerFlags>(line));
  if (status.ok()) return 0;
  std::fprintf(stderr, "lockstep-worker: error: %s\n",
               std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) ? kExitUsage : 1;
}

}  // namespace lockstep
