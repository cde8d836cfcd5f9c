// The daemon itself: killed, stopped, started twice.

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "coordinator/service/fake_worker.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "lockstep/v1/job_service.grpc.pb.h"
#include "lockstep/v1/monitor_service.grpc.pb.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

// A run of the program; killed with the test.
class Process {
 public:
  Process(const std::vector<std::string>& arguments,
          const std::string& log_path)
      : log_path_(log_path) {
    std::vector<std::string> words = {"coordinator/lockstep-coordinator"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    child_ = fork();
    if (child_ == 0) {
      const int log =
          open(log_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      dup2(log, STDOUT_FILENO);
      dup2(log, STDERR_FILENO);
      execv(argv[0], argv.data());
      _exit(127);
    }
  }
  ~Process() {
    if (child_ > 0) {
      Kill(SIGKILL);
      Wait();
    }
  }

  void Kill(int signal) { kill(child_, signal); }

  // As waitpid gives it.
  int Wait() {
    int how = 0;
    waitpid(child_, &how, 0);
    child_ = -1;
    return how;
  }
  pid_t id() const { return child_; }

  std::string log() const {
    std::ifstream in(log_path_);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }

 private:
  const std::string log_path_;
  pid_t child_ = -1;
};

class CoordinatorBinaryTest : public ::testing::Test {
 protected:
  CoordinatorBinaryTest() {
    std::string name =
        absl::StrCat(std::getenv("TEST_TMPDIR"), "/binary.XXXXXX");
    folder_ = mkdtemp(name.data());
  }
  ~CoordinatorBinaryTest() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<Process> Start(const std::string& store,
                                 const std::string& listen = "127.0.0.1:0") {
    // Of the process before, which may have been killed.
    std::filesystem::remove(folder_ + "/port");
    return std::make_unique<Process>(
        std::vector<std::string>{"--store", folder_ + "/" + store, "--listen",
                                 listen, "--port-file", folder_ + "/port",
                                 "--lease", "60s"},
        absl::StrCat(folder_, "/log.", ++log_count_));
  }

  // The port that the process serves, once it does; empty when it ended.
  std::string WaitForPort(const Process& process) {
    const absl::Time end = RealClock().WallNow() + absl::Seconds(30);
    while (RealClock().WallNow() < end) {
      std::ifstream in(folder_ + "/port");
      std::string port;
      if (in >> port) return port;
      std::this_thread::yield();
    }
    ADD_FAILURE() << "no port: " << process.log();
    return "";
  }

  std::shared_ptr<grpc::Channel> Connect(const std::string& port) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(
        "127.0.0.1:" + port, grpc::InsecureChannelCredentials(), arguments);
  }

  v1::Job WaitForState(v1::JobService::Stub& jobs, const std::string& name,
                       v1::Job::State state) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::seconds(30));
    v1::WatchJobRequest request;
    request.set_name(name);
    auto stream = jobs.WatchJob(&context, request);
    v1::WatchJobResponse response;
    while (stream->Read(&response)) {
      if (response.job().state() == state) break;
    }
    EXPECT_EQ(response.job().state(), state);
    context.TryCancel();
    return response.job();
  }

  std::string folder_;
  int log_count_ = 0;
};

TEST_F(CoordinatorBinaryTest, KilledInMidJobItLosesNeitherJobNorGeneration) {
  auto process = Start("store");
  std::string port = WaitForPort(*process);
  auto channel = Connect(port);
  auto jobs = v1::JobService::NewStub(channel);
  v1::SubmitJobRequest submit;
  *submit.mutable_spec() = MakeJobSpec("/out", 8);
  submit.set_request_id("request");
  v1::Job job;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(jobs->SubmitJob(&context, submit, &job).ok());
  }
  const std::string name = job.name();
  auto worker = std::make_unique<FakeWorker>(channel, "w");
  worker->Connect();
  ASSERT_EQ(worker->coordinator_incarnation(), 1);
  ASSERT_TRUE(worker->JoinNextGeneration());
  ASSERT_TRUE(worker->StartTraining());
  worker->SendReports(0, 4);
  ASSERT_TRUE(worker->WaitForAck(4));
  WaitForState(*jobs, name, v1::Job::RUNNING);

  process->Kill(SIGKILL);
  EXPECT_TRUE(WIFSIGNALED(process->Wait()));
  process = Start("store");
  port = WaitForPort(*process);
  channel = Connect(port);
  jobs = v1::JobService::NewStub(channel);

  // The submission, sent again, is the same job, and it still runs.
  {
    grpc::ClientContext context;
    ASSERT_TRUE(jobs->SubmitJob(&context, submit, &job).ok());
  }
  EXPECT_EQ(job.name(), name);
  EXPECT_EQ(job.state(), v1::Job::RUNNING);
  EXPECT_EQ(job.generation(), 1);
  EXPECT_EQ(job.progress().step_count(), 4);
  FakeWorker again(channel, "w");
  again.status() = worker->status();
  again.Connect();
  EXPECT_EQ(again.coordinator_incarnation(), 2);
  again.SendReports(4, 8);
  again.TellPhase(v1::Worker::OUTPUT_READY);
  ASSERT_TRUE(again.CommitAndRelease());
  job = WaitForState(*jobs, name, v1::Job::COMPLETED);
  EXPECT_EQ(job.generation(), 1);

  auto monitor = v1::MonitorService::NewStub(channel);
  grpc::ClientContext context;
  v1::ListStepMetricsRequest list;
  list.set_job(name);
  v1::ListStepMetricsResponse rows;
  ASSERT_TRUE(monitor->ListStepMetrics(&context, list, &rows).ok());
  ASSERT_EQ(rows.step_metrics_size(), 8);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(rows.step_metrics(i).step(), i);
}

TEST_F(CoordinatorBinaryTest, StopsOnSigtermWithStreamsUnavailable) {
  auto process = Start("store");
  FakeWorker worker(Connect(WaitForPort(*process)), "w");
  worker.Connect();
  const absl::Time begin = RealClock().WallNow();

  process->Kill(SIGTERM);
  const int how = process->Wait();

  EXPECT_TRUE(WIFEXITED(how) && WEXITSTATUS(how) == 0) << process->log();
  EXPECT_LT(RealClock().WallNow() - begin, absl::Seconds(5));
  const grpc::Status status = worker.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("the coordinator stops"));
}

TEST_F(CoordinatorBinaryTest, ASecondOneOnTheSameStoreOrPortIsRefused) {
  auto first = Start("store");
  const std::string port = WaitForPort(*first);
  auto expect_failure = [&](std::unique_ptr<Process> process,
                            const std::string& text, int code = 1) {
    const int how = process->Wait();
    EXPECT_TRUE(WIFEXITED(how) && WEXITSTATUS(how) == code) << process->log();
    EXPECT_THAT(process->log(), HasSubstr(text));
  };

  expect_failure(Start("store"),
                 absl::StrCat("in use by process ", first->id()));
  expect_failure(Start("other", "127.0.0.1:" + port),
                 absl::StrCat("127.0.0.1:", port,
                              ": cannot listen: Address already in use"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/other"));
  expect_failure(Start("other", "0.0.0.0:0"), "--insecure", 2);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/other"));

  // The first was not disturbed.
  auto jobs = v1::JobService::NewStub(Connect(port));
  grpc::ClientContext context;
  v1::ListJobsResponse response;
  EXPECT_TRUE(jobs->ListJobs(&context, {}, &response).ok());
}

TEST_F(CoordinatorBinaryTest, ADamagedStoreIsRefusedAndLeftAlone) {
  std::filesystem::create_directory(folder_ + "/store");
  std::ofstream(folder_ + "/store/coordinator.db") << "not a database";

  auto process = Start("store");
  const int how = process->Wait();

  EXPECT_TRUE(WIFEXITED(how) && WEXITSTATUS(how) == 1);
  EXPECT_THAT(process->log(), HasSubstr("expected the header of a SQLite"));
  std::ifstream in(folder_ + "/store/coordinator.db");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}),
            "not a database");
}

}  // namespace
}  // namespace lockstep
