#include "cli/run_command.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "cli/client.h"
#include "cli/daemon.h"
#include "cli/exit_code.h"
#include "cli/job_commands.h"
#include "cli/model_sizes.h"
#include "cli/progress.h"
#include "cli/step_rows.h"
#include "cli/text.h"
#include "common/mutex.h"
#include "common/spec.h"
#include "common/status.h"
#include "kernels/cpu/memory.h"
#include "worker/trainer/output_directory.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kWorkersMax = 256;

// How long a coordinator may take until it serves.
constexpr absl::Duration kStartMax = absl::Seconds(30);

// How long workers may take to let go of a job that was interrupted.
constexpr absl::Duration kReleaseMax = absl::Seconds(5);

// How long daemons may take to end by themselves.
constexpr absl::Duration kStopMax = absl::Seconds(10);

constexpr int kLogLinesShown = 15;

struct RunOptions {
  JobFileOptions file;
  int workers = 0;  // 0: as the job says.
  int threads = 0;  // 0: the machine's, divided among the workers.
  std::string collectives = "auto";
  std::string bin_folder;
  std::string metrics_path;
};

int MachineThreads() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

// Whether WriteMetrics will be able to; changes nothing.
//
// Errors:
//   InvalidArgument: it will not.
absl::Status CheckWritable(const std::string& path) {
  const fs::path folder = fs::absolute(path).parent_path();
  const bool there = access(path.c_str(), F_OK) == 0;
  if (fs::is_directory(path)) {
    errno = EISDIR;
  } else if (access(there ? path.c_str() : folder.c_str(), W_OK) == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--metrics: cannot write ", path, ": ", std::strerror(errno)));
}

// A folder of this user alone, removed at the end; but for the logs if they are
// to be kept.
class TemporaryFolder {
 public:
  static absl::StatusOr<std::unique_ptr<TemporaryFolder>> Make(
      const Environment& env) {
    std::string path = absl::StrCat(env.variable("TMPDIR").value_or("/tmp"),
                                    "/lockstep-run-XXXXXX");
    if (mkdtemp(path.data()) == nullptr) {
      return absl::UnknownError(
          absl::StrCat("cannot make a folder for the daemons, ", path, ": ",
                       std::strerror(errno), " (TMPDIR says where)"));
    }
    return std::unique_ptr<TemporaryFolder>(new TemporaryFolder(path));
  }

  ~TemporaryFolder() {
    std::error_code ignored;
    if (!keep_logs_) {
      fs::remove_all(path_, ignored);
      return;
    }
    fs::remove_all(store(), ignored);
    fs::remove(port_file(), ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string store() const { return path_ + "/store"; }
  std::string port_file() const { return path_ + "/port"; }
  std::string log(const std::string& name) const {
    return absl::StrCat(path_, "/", name, ".log");
  }
  void KeepLogs() { keep_logs_ = true; }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}

  const std::string path_;
  bool keep_logs_ = false;
};

// One run, from start to end.  The main thread starts and watches the daemons,
// another follows the job.
class Run {
 public:
  Run(const RunOptions& options, const JobFile& file, v1::JobSpec spec,
      CommandLine& line)
      : options_(options),
        file_(file),
        spec_(std::move(spec)),
        line_(line),
        env_(line.env) {}

  int Execute() {
    auto folder = TemporaryFolder::Make(env_);
    if (!folder.ok()) return Fail(env_, folder.status());
    folder_ = *std::move(folder);

    absl::Status status = StartDaemons();
    if (status.ok() && interrupted_ == 0) status = FollowJob();
    if (interrupted_ != 0) ReleaseJob();
    // Workers first: they have something to say to the coordinator.
    StopAll(Workers(), kStopMax, waiter_, env_.clock);
    if (coordinator_) {
      StopAll({coordinator_.get()}, kStopMax, waiter_, env_.clock);
    }
    if (interrupted_ != 0 || dead_ != nullptr || !status.ok() ||
        job_.state() != v1::Job::COMPLETED) {
      // A rank that was killed, or stopped, could not tidy up.
      OutputDirectory::RemoveLeftovers(spec_.output_directory(),
                                       {WithoutPrefix("jobs/", job_.name())});
    }
    if (interrupted_ != 0) {
      env_.err << "lockstep: interrupted; all that was started is stopped"
               << std::endl;
      return 128 + interrupted_;
    }
    int code = kExitOk;
    if (!status.ok()) {
      code = Fail(env_, file_.Locate(status));
    } else {
      code = SayHowItEnded(job_, env_);
    }
    // A job that failed by its own fault has said all there is to say, and what
    // went wrong after one had completed is not in the logs.
    const bool gave_up = code == kExitJobFailed &&
                         job_.failure_count() > spec_.parallel().failures_max();
    if (gave_up || (job_.state() != v1::Job::COMPLETED &&
                    (code == kExitFailure || code == kExitUnreachable))) {
      ShowLogs(gave_up);
    }
    return code;
  }

 private:
  std::vector<Daemon*> Workers() const {
    std::vector<Daemon*> workers;
    for (const auto& worker : workers_) workers.push_back(worker.get());
    return workers;
  }

  // `component`: the folder of the build tree that has it.
  std::string Program(const std::string& component) const {
    const std::string name = "lockstep-" + component;
    if (!options_.bin_folder.empty()) {
      return (fs::path(env_.working_folder) / options_.bin_folder / name)
          .lexically_normal()
          .string();
    }
    // Beside this program where it is installed; where it was just built, in
    // the folder of its component.
    const fs::path own = env_.program_folder;
    const fs::path built = own.parent_path() / component / name;
    std::error_code ignored;
    return !fs::exists(own / name, ignored) && fs::exists(built, ignored)
               ? built.string()
               : (own / name).string();
  }

  absl::StatusOr<std::unique_ptr<Daemon>> Start(
      const std::string& name, const std::string& log,
      std::vector<std::string> command) {
    auto daemon = Daemon::Start({.name = name,
                                 .command = std::move(command),
                                 .log_path = folder_->log(log)});
    if (daemon.status().code() == absl::StatusCode::kNotFound) {
      return absl::FailedPreconditionError(
          absl::StrCat(daemon.status().message(),
                       ": --bin-dir says where the programs are"));
    }
    return daemon;
  }

  absl::Status StartDaemons() {
    ASSIGN_OR_RETURN(
        coordinator_,
        Start("lockstep-coordinator", "coordinator",
              {Program("coordinator"), "--listen", "127.0.0.1:0", "--store",
               folder_->store(), "--port-file", folder_->port_file()}));
    RETURN_IF_ERROR(WaitForPort());
    if (interrupted_ != 0) return absl::OkStatus();
    const int count = options_.workers > 0 ? options_.workers
                                           : spec_.parallel().max_workers();
    const int threads = options_.threads > 0
                            ? options_.threads
                            : std::max(1, MachineThreads() / count);
    const std::string memory = absl::StrFormat(
        "%.3f",
        std::ldexp(kernels::cpu::ReadHostMemory().total_bytes, -30) / count);
    for (int i = 1; i <= count; ++i) {
      const std::string name = absl::StrCat("w", i);
      ASSIGN_OR_RETURN(
          auto worker,
          Start(absl::StrCat("lockstep-worker ", name), name,
                {Program("worker"), "--coordinator", address_, "--name", name,
                 "--device", "cpu", "--threads", absl::StrCat(threads),
                 "--memory", memory, "--collectives", options_.collectives}));
      workers_.push_back(std::move(worker));
    }
    return absl::OkStatus();
  }

  // Sets address_, or interrupted_.
  absl::Status WaitForPort() {
    const Instant deadline = env_.clock.Now() + kStartMax;
    for (;;) {
      std::ifstream file(folder_->port_file());
      std::string text;
      if (file && std::getline(file, text)) {
        int port = 0;
        if (!absl::SimpleAtoi(text, &port) || port < 1 || port > 65535) {
          return absl::InternalError(
              absl::StrCat("lockstep-coordinator wrote no port into ",
                           folder_->port_file(), ": ", OneLine(text)));
        }
        address_ = absl::StrCat("127.0.0.1:", port);
        return absl::OkStatus();
      }
      interrupted_ = waiter_.TakeStop();
      if (interrupted_ != 0) return absl::OkStatus();
      RETURN_IF_ERROR(AllLive("before it served"));
      if (env_.clock.Now() >= deadline) {
        return absl::DeadlineExceededError(
            absl::StrCat("lockstep-coordinator did not serve within ",
                         absl::FormatDuration(kStartMax)));
      }
      waiter_.Wait(absl::Milliseconds(20));
    }
  }

  // Errors:
  //   Aborted: a daemon has ended.
  absl::Status AllLive(absl::string_view when) {
    std::vector<Daemon*> daemons = Workers();
    daemons.push_back(coordinator_.get());
    for (Daemon* daemon : daemons) {
      const auto how = daemon->HowItEnded();
      if (!how) continue;
      dead_ = daemon;
      return absl::AbortedError(
          absl::StrCat(daemon->name(), " ended ", when, ": ", *how));
    }
    return absl::OkStatus();
  }

  // Submits the job and shows it until it has ended, a daemon has, or this
  // process is to end.  Sets job_, or interrupted_.
  absl::Status FollowJob() {
    ASSIGN_OR_RETURN(
        const auto client,
        Client::Create({.coordinator = address_, .timeout = line_.timeout},
                       env_.clock));
    absl::Status followed;
    std::thread follower([&] {
      absl::Status status = Follow(*client);
      {
        MutexLock lock(&mutex_);
        followed = std::move(status);
        done_ = true;
      }
      waiter_.Wake();
    });
    absl::Status lived;
    while (!Done()) {
      interrupted_ = waiter_.TakeStop();
      if (interrupted_ == 0 && nobody_listens_) interrupted_ = SIGPIPE;
      if (interrupted_ != 0) break;
      lived = AllLive("while the job was on");
      if (!lived.ok()) break;
      waiter_.Wait(absl::InfiniteDuration());
    }
    client->Cancel();
    follower.join();
    // What the job had come to counts for more than a daemon's end after it.
    if (followed.ok()) {
      interrupted_ = 0;
      dead_ = nullptr;
      return absl::OkStatus();
    }
    if (lived.ok() && interrupted_ == 0) {
      // A call may have failed before its cause was seen.
      lived = AllLive("while the job was on");
    }
    return lived.ok() ? followed : lived;
  }

  // The signal of a broken pipe goes to the thread that wrote, and is blocked.
  void NobodyListens() {
    nobody_listens_ = true;
    waiter_.Wake();
  }

  bool Done() {
    MutexLock lock(&mutex_);
    return done_;
  }

  absl::Status Follow(Client& client) {
    v1::SubmitJobRequest request;
    *request.mutable_spec() = spec_;
    request.set_request_id(env_.make_request_id());
    ASSIGN_OR_RETURN(job_, client.SubmitJob(request));
    ProgressView view(env_.out, env_.terminal, env_.columns, env_.clock);
    ASSIGN_OR_RETURN(job_,
                     client.WatchJob(job_.name(), [&](const v1::Job& now) {
                       view.Show(now);
                       if (!env_.out) NobodyListens();
                     }));
    view.Finish();
    return WriteMetrics(client);
  }

  absl::Status WriteMetrics(Client& client) {
    if (options_.metrics_path.empty()) return absl::OkStatus();
    std::ofstream file(options_.metrics_path);
    file << StepCsvTitles();
    v1::ListStepMetricsRequest request;
    request.set_job(job_.name());
    RETURN_IF_ERROR(client.ListStepMetrics(
        request, [&](const v1::StepMetrics& row) { file << StepCsvRow(row); }));
    file.close();
    if (!file) {
      return absl::UnknownError(absl::StrCat(
          "cannot write ", options_.metrics_path, ": ", std::strerror(errno)));
    }
    return absl::OkStatus();
  }

  // Cancels the job and waits until no worker holds it, so that what it had
  // not finished is cleared away.  Another signal ends the wait.
  void ReleaseJob() {
    if (address_.empty()) return;
    const auto client = Client::Create(
        {.coordinator = address_, .timeout = absl::Seconds(2)}, env_.clock);
    if (!client.ok()) return;
    // This coordinator has no other job; the answer to its submission may not
    // have come any more.
    const auto jobs = (*client)->ListJobs(v1::ListJobsRequest(), 1);
    if (!jobs.ok() || jobs->jobs().empty()) return;
    v1::CancelJobRequest request;
    request.set_name(jobs->jobs(0).name());
    request.set_reason("interrupted");
    if (!(*client)->CancelJob(request).ok()) return;
    const Instant deadline = env_.clock.Now() + kReleaseMax;
    while (env_.clock.Now() < deadline) {
      const auto response = (*client)->ListWorkers();
      if (!response.ok()) return;
      const auto& workers = response->workers();
      if (std::none_of(workers.begin(), workers.end(),
                       [](const v1::Worker& w) { return !w.job().empty(); })) {
        return;
      }
      waiter_.Wait(absl::Milliseconds(50));
      if (waiter_.TakeStop() != 0) return;
    }
  }

  // Says where the logs are, and how those end that may explain what the error
  // does not: of the daemon that ended, or of all if none answers for it.  A
  // job that gave up has said why itself.
  void ShowLogs(bool gave_up) {
    folder_->KeepLogs();
    env_.err << "lockstep: the daemons' logs are in " << folder_->path()
             << "\n";
    std::vector<Daemon*> daemons = Workers();
    if (coordinator_) daemons.insert(daemons.begin(), coordinator_.get());
    for (const Daemon* daemon : daemons) {
      if (gave_up || (dead_ != nullptr && daemon != dead_)) continue;
      const auto lines = LastLines(daemon->log_path(), kLogLinesShown);
      env_.err << "lockstep: " << daemon->log_path()
               << (lines.empty() ? " is empty" : " ends with") << "\n";
      for (const std::string& text : lines) {
        env_.err << "  | " << OneLine(text) << "\n";
      }
    }
    env_.err << std::flush;
  }

  const RunOptions& options_;
  const JobFile& file_;
  const v1::JobSpec spec_;
  CommandLine& line_;
  Environment& env_;

  SignalWaiter waiter_;
  std::unique_ptr<TemporaryFolder> folder_;
  std::unique_ptr<Daemon> coordinator_;
  std::vector<std::unique_ptr<Daemon>> workers_;
  const Daemon* dead_ = nullptr;
  std::string address_;
  int interrupted_ = 0;
  std::atomic<bool> nobody_listens_ = false;

  // Of the following thread; the main thread looks at it once that has ended.
  v1::Job job_;

  Mutex mutex_;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
};

int RunJob(const RunOptions& options, CommandLine& line) {
  Environment& env = line.env;
  auto file = ReadJobFile(options.file, env);
  if (!file.ok()) return Fail(env, file.status());
  if (options.workers > 0) {
    v1::ParallelSpec& parallel = *file->spec().mutable_parallel();
    const v1::BatchSpec& batch = file->spec().batch();
    int used = options.workers;
    if (batch.micro_batch_size() > 0 && batch.global_batch_size() > 0) {
      used = std::clamp(batch.global_batch_size() / batch.micro_batch_size(), 1,
                        used);
    }
    if (used < options.workers) {
      env.err << "lockstep: a step has " << used << " micro-batches, so "
              << options.workers - used << " of " << options.workers
              << " workers stay idle" << std::endl;
    }
    parallel.set_min_workers(used);
    parallel.set_max_workers(options.workers);
  }
  // What cannot be read the workers say.
  if (const absl::Status read = ReadModelSizes(&file->spec());
      absl::IsInvalidArgument(read)) {
    return Fail(env, file->Locate(read));
  }
  const auto resolved = ResolveJobSpec(file->spec());
  if (!resolved.ok()) return Fail(env, file->Locate(resolved.status()));
  if (resolved->parallel().max_workers() > kWorkersMax) {
    return Fail(env, file->Locate(absl::InvalidArgumentError(
                         absl::StrCat("parallel.max_workers: expected at most ",
                                      kWorkersMax, " on one machine, got ",
                                      resolved->parallel().max_workers()))));
  }
  if (!options.metrics_path.empty()) {
    const absl::Status writable = CheckWritable(options.metrics_path);
    if (!writable.ok()) return Fail(env, writable);
  }
  return Run(options, *file, *resolved, line).Execute();
}

}  // namespace

void AddRunCommand(CLI::App* app, CommandLine* line) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = app->add_subcommand(
      "run", "Train one job on this machine, from start to end");
  AddJobFileOptions(command, &options->file);
  command
      ->add_option("--workers", options->workers,
                   "Train on so many worker processes, instead of as "
                   "parallel.min_workers and max_workers say: 1 to 256")
      ->type_name("N")
      ->check(CLI::Range(1, kWorkersMax).description(""));
  command
      ->add_option("--threads", options->threads,
                   "Threads of each worker.  Default: the machine's processors "
                   "divided among the workers")
      ->type_name("N")
      ->check(CLI::Range(1, 1024).description(""));
  command
      ->add_option("--collectives", options->collectives,
                   "By which way the workers exchange gradients: auto, tcp or "
                   "shared-memory; see lockstep-worker --help.  Default: auto")
      ->type_name("WAY")
      ->check(CLI::IsMember({"auto", "tcp", "shared-memory"}).description(""));
  command
      ->add_option("--metrics", options->metrics_path,
                   "Write what each rank reported of each step there, as CSV, "
                   "once the job has ended")
      ->type_name("FILE");
  command
      ->add_option("--bin-dir", options->bin_folder,
                   "Where lockstep-coordinator and lockstep-worker are.  "
                   "Default: beside this program")
      ->type_name("DIR");
  AddDurationOption(command, "--timeout", &line->timeout,
                    "How long to ask a coordinator that does not answer.  "
                    "Default: 10s");
  command->footer(R"(
Starts a coordinator and workers on the loopback interface, submits the job,
shows it as watch does, and stops all of it: at the end, on Ctrl-C, and when
one of them dies.  The number of workers and threads changes the time it takes
and nothing else.  Ctrl-C cancels the job; twice stops at once.

Examples:
  lockstep run job.yaml
  lockstep run job.yaml --workers 2 --set schedule.max_steps=100
  lockstep run job.yaml --metrics steps.csv)");
  command->callback([options, line] {
    line->run = [options, line] { return RunJob(*options, *line); };
  });
}

}  // namespace lockstep::cli
