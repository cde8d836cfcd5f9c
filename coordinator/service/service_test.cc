// The services over real gRPC, with workers that only talk.

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/spec.h"
#include "common/time_proto.h"
#include "coordinator/service/fake_worker.h"
#include "coordinator/service/server.h"
#include "coordinator/service/shell.h"
#include "coordinator/service/step_watch.h"
#include "coordinator/store/store.h"
#include "gmock/gmock.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "lockstep/v1/job_service.grpc.pb.h"
#include "lockstep/v1/monitor_service.grpc.pb.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;

// A store between the shell and the real one, to see and to disturb commits.
class WatchedStore : public Store {
 public:
  explicit WatchedStore(std::unique_ptr<Store> store)
      : store_(std::move(store)) {}

  absl::StatusOr<StoreContent> Load() override { return store_->Load(); }

  absl::StatusOr<std::vector<bool>> Apply(
      const std::vector<StoreChange>& changes, int64_t commit) override {
    {
      MutexLock lock(&mutex_);
      ++apply_count_;
      changed_.SignalAll();
      while (held_) changed_.Wait(&mutex_);
      if (!failure_.ok()) return failure_;
    }
    return store_->Apply(changes, commit);
  }

  absl::StatusOr<std::vector<StepRow>> ListSteps(
      const StepQuery& query) override {
    return store_->ListSteps(query);
  }
  absl::StatusOr<std::vector<StepRow>> LastSteps(const GenerationKey& key,
                                                 int step_count,
                                                 int row_count_max) override {
    return store_->LastSteps(key, step_count, row_count_max);
  }

  // Commits wait from now on.
  void Hold() {
    MutexLock lock(&mutex_);
    held_ = true;
  }
  void Release() {
    MutexLock lock(&mutex_);
    held_ = false;
    changed_.SignalAll();
  }
  // Commits fail from now on.
  void Fail(absl::Status status) {
    MutexLock lock(&mutex_);
    failure_ = std::move(status);
  }
  void WaitForApplies(int count) {
    MutexLock lock(&mutex_);
    while (apply_count_ < count) changed_.Wait(&mutex_);
  }
  int apply_count() {
    MutexLock lock(&mutex_);
    return apply_count_;
  }

 private:
  std::unique_ptr<Store> store_;
  Mutex mutex_;
  CondVar changed_;
  int apply_count_ ABSL_GUARDED_BY(mutex_) = 0;
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

class ServiceTest : public ::testing::Test {
 protected:
  ServiceTest() {
    std::string name =
        absl::StrCat(std::getenv("TEST_TMPDIR"), "/service.XXXXXX");
    folder_ = mkdtemp(name.data());
    core_options_.lease = absl::Seconds(60);
    core_options_.reattach_window = absl::Seconds(120);
    core_options_.worker_backoff = absl::Milliseconds(10);
  }
  ~ServiceTest() override {
    StopAll();
    std::filesystem::remove_all(folder_);
  }

  void StartAll() {
    auto store = OpenStore({.folder = folder_});
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = std::make_unique<WatchedStore>(*std::move(store));
    Shell::Options options;
    options.core = core_options_;
    options.random = [this] {
      random_ = random_ * 6364136223846793005u + 1442695040888963407u;
      return random_ >> 8;
    };
    options.on_store_failure = [this](const absl::Status& status) {
      MutexLock lock(&failure_mutex_);
      store_failure_ = status;
      failure_changed_.SignalAll();
    };
    auto shell = Shell::Create(std::move(options), *store_, RealClock());
    ASSERT_TRUE(shell.ok()) << shell.status();
    shell_ = *std::move(shell);
    auto server = Server::Start({.listen = {"127.0.0.1", 0}}, *shell_, *store_,
                                RealClock());
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = NewChannel();
    jobs_ = v1::JobService::NewStub(channel_);
    monitor_ = v1::MonitorService::NewStub(channel_);
  }

  void StopAll() {
    if (server_ != nullptr) server_->Stop();
    server_.reset();
    shell_.reset();
    store_.reset();
  }

  // Of its own connection.
  std::shared_ptr<grpc::Channel> NewChannel() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(
        absl::StrCat("127.0.0.1:", server_->port()),
        grpc::InsecureChannelCredentials(), arguments);
  }

  grpc::Status Submit(const v1::JobSpec& spec, const std::string& request_id,
                      v1::Job* job) {
    grpc::ClientContext context;
    v1::SubmitJobRequest request;
    *request.mutable_spec() = spec;
    request.set_request_id(request_id);
    return jobs_->SubmitJob(&context, request, job);
  }

  // Submits what must be accepted.
  v1::Job MustSubmit(const v1::JobSpec& spec, const std::string& request_id) {
    v1::Job job;
    const grpc::Status status = Submit(spec, request_id, &job);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return job;
  }

  v1::Job Get(const std::string& name) {
    grpc::ClientContext context;
    v1::GetJobRequest request;
    request.set_name(name);
    v1::Job job;
    const grpc::Status status = jobs_->GetJob(&context, request, &job);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return job;
  }

  grpc::Status Cancel(const std::string& name, v1::Job* job) {
    grpc::ClientContext context;
    v1::CancelJobRequest request;
    request.set_name(name);
    request.set_reason("enough");
    return jobs_->CancelJob(&context, request, job);
  }

  // Follows the job until `want` says yes, and returns it.
  v1::Job WaitForJob(const std::string& name,
                     const std::function<bool(const v1::Job&)>& want) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::seconds(20));
    v1::WatchJobRequest request;
    request.set_name(name);
    auto stream = jobs_->WatchJob(&context, request);
    v1::WatchJobResponse response;
    while (stream->Read(&response)) {
      if (want(response.job())) {
        context.TryCancel();
        return response.job();
      }
    }
    ADD_FAILURE() << "last seen: " << response.ShortDebugString();
    return response.job();
  }
  v1::Job WaitForState(const std::string& name, v1::Job::State state) {
    return WaitForJob(name,
                      [&](const v1::Job& job) { return job.state() == state; });
  }

  std::vector<v1::Worker> Workers() {
    grpc::ClientContext context;
    v1::ListWorkersResponse response;
    EXPECT_TRUE(monitor_->ListWorkers(&context, {}, &response).ok());
    return {response.workers().begin(), response.workers().end()};
  }
  v1::Worker WaitForWorker(const std::string& name,
                           const std::function<bool(const v1::Worker&)>& want) {
    const absl::Time end = RealClock().WallNow() + absl::Seconds(20);
    while (true) {
      for (const v1::Worker& worker : Workers()) {
        if (worker.name() == name && want(worker)) return worker;
      }
      if (RealClock().WallNow() > end) {
        ADD_FAILURE() << name << " did not become what was wanted";
        return {};
      }
      std::this_thread::yield();
    }
  }

  // "step/rank@generation" of each row listed.
  std::vector<std::string> Rows(const v1::ListStepMetricsRequest& request) {
    grpc::ClientContext context;
    v1::ListStepMetricsResponse response;
    const grpc::Status status =
        monitor_->ListStepMetrics(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    std::vector<std::string> rows;
    for (const v1::StepMetrics& row : response.step_metrics()) {
      rows.push_back(
          absl::StrCat(row.step(), "/", row.rank(), "@", row.generation()));
    }
    return rows;
  }
  std::vector<std::string> Rows(const std::string& job) {
    v1::ListStepMetricsRequest request;
    request.set_job(job);
    return Rows(request);
  }

  std::string folder_;
  CoordinatorOptions core_options_;
  uint64_t random_ = 1;
  std::unique_ptr<WatchedStore> store_;
  std::unique_ptr<Shell> shell_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
  std::unique_ptr<v1::MonitorService::Stub> monitor_;
  Mutex failure_mutex_;
  CondVar failure_changed_;
  std::optional<absl::Status> store_failure_ ABSL_GUARDED_BY(failure_mutex_);
};

// ------------------------------------------------------------------- jobs

TEST_F(ServiceTest, ARepeatedSubmissionIsTheSameJob) {
  StartAll();
  const v1::JobSpec spec = MakeJobSpec("/out", 5);

  const v1::Job first = MustSubmit(spec, "request");
  const v1::Job second = MustSubmit(spec, "request");

  EXPECT_THAT(first.name(), MatchesRegex("jobs/j-[0-9a-z]+"));
  EXPECT_EQ(first.name().size(), std::string("jobs/j-0123456789").size());
  EXPECT_EQ(second.name(), first.name());
  EXPECT_EQ(first.state(), v1::Job::QUEUED);
  EXPECT_THAT(first.state_reason(), HasSubstr("needs 1 worker"));
  // Defaults are filled in; the digest is of what was sent.
  EXPECT_EQ(first.spec().data().stride(), 16);
  EXPECT_EQ(first.spec_digest().size(), 64u);
  EXPECT_EQ(Get(first.name()).name(), first.name());
}

TEST_F(ServiceTest, SubmissionsThatCannotBeAreRefused) {
  StartAll();
  const v1::JobSpec spec = MakeJobSpec("/out", 5);
  MustSubmit(spec, "request");
  v1::Job job;

  grpc::Status status = Submit(MakeJobSpec("/out2", 6), "request", &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ALREADY_EXISTS);

  status = Submit(spec, "another", &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("/out"));

  v1::JobSpec wrong = MakeJobSpec("/out3", 5);
  wrong.mutable_batch()->set_micro_batch_size(3);
  status = Submit(wrong, "wrong", &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("batch."));

  for (const std::string& id :
       {std::string(), std::string(129, 'x'), std::string("a\nb")}) {
    status = Submit(MakeJobSpec("/out4", 5), id, &job);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("request_id: expected"));
  }
}

TEST_F(ServiceTest, AJobIsPlannedForTheWorkersThatAreThere) {
  StartAll();
  FakeWorker small(NewChannel(), "small");
  small.device().set_memory_bytes(int64_t{65} << 20);
  small.device().set_thread_count(3);
  small.Connect();
  const v1::JobSpec spec = MakeJobSpec("/out", 5, 1, 2);
  const auto plan = [&](const v1::PlanJobRequest& request) {
    grpc::ClientContext context;
    v1::PlanJobResponse response;
    const grpc::Status status = jobs_->PlanJob(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.plan();
  };
  v1::PlanJobRequest request;
  *request.mutable_spec() = spec;

  const v1::JobPlan fits = plan(request);
  EXPECT_EQ(fits.worker().memory_bytes(), int64_t{65} << 20);
  EXPECT_EQ(fits.worker().thread_count(), 3);
  EXPECT_EQ(fits.rows_size(), 8);
  EXPECT_EQ(fits.spec().data().stride(), 16);
  EXPECT_TRUE(fits.fits());

  request.mutable_worker()->set_memory_bytes(1 << 20);
  EXPECT_FALSE(plan(request).fits());
}

TEST_F(ServiceTest, WhatCannotBePlannedIsRefused) {
  StartAll();
  grpc::ClientContext first_context;
  v1::PlanJobRequest request;
  v1::PlanJobResponse response;
  EXPECT_EQ(jobs_->PlanJob(&first_context, request, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);

  *request.mutable_spec() = MakeJobSpec("/out", 5);
  request.mutable_spec()->mutable_model()->set_hugging_face_folder("/model");
  grpc::ClientContext second_context;
  const grpc::Status status =
      jobs_->PlanJob(&second_context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("lockstep plan"));
}

TEST_F(ServiceTest, AJobThatFitsNoWorkerIsRefusedWithItsPlan) {
  StartAll();
  FakeWorker small(NewChannel(), "small");
  small.device().set_memory_bytes(1 << 20);
  small.Connect();

  v1::JobSpec spec = MakeJobSpec("/out", 5);
  spec.mutable_batch()->set_global_batch_size(1 << 13);
  spec.mutable_parallel()->set_max_workers(4096);
  v1::Job job;
  const grpc::Status status = Submit(spec, "request", &job);

  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("ZERO WORKERS"));
  EXPECT_LT(status.error_message().size(), 4000u);
  EXPECT_THAT(status.error_message(), HasSubstr("What would make it fit"));
}

TEST_F(ServiceTest, TheStageThatWasChosenIsShownAndStays) {
  StartAll();
  FakeWorker worker(NewChannel(), "w");
  worker.device().set_memory_bytes(1 << 30);
  worker.Connect();
  const v1::Job job = MustSubmit(MakeJobSpec("/out", 5), "request");
  ASSERT_TRUE(worker.JoinNextGeneration());

  EXPECT_TRUE(worker.prepare().spec().parallel().has_zero_stage());
  EXPECT_TRUE(Get(job.name()).spec().parallel().has_zero_stage());
  StopAll();
  StartAll();
  EXPECT_TRUE(Get(job.name()).spec().parallel().has_zero_stage());
}

TEST_F(ServiceTest, AListOfLargeJobsIsCutIntoPagesThatFitAMessage) {
  StartAll();
  // Of a megabyte each; a client takes four.
  for (int i = 0; i < 6; ++i) {
    v1::JobSpec spec = MakeJobSpec(absl::StrCat("/out/", i), 5);
    for (int f = 0; f < 1000; ++f) {
      spec.mutable_data()->add_files(
          absl::StrCat("/data/", std::string(1000, 'x'), f));
    }
    MustSubmit(spec, absl::StrCat("r", i));
  }
  int count = 0;
  v1::ListJobsRequest request;
  v1::ListJobsResponse response;
  do {
    grpc::ClientContext context;
    const grpc::Status status = jobs_->ListJobs(&context, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    count += response.jobs_size();
    request.set_page_token(response.next_page_token());
  } while (!response.next_page_token().empty());
  EXPECT_EQ(count, 6);

  v1::JobSpec huge = MakeJobSpec("/huge", 5);
  for (int f = 0; f < 3300; ++f) {
    huge.mutable_data()->add_files(
        absl::StrCat("/data/", std::string(1000, 'x'), f));
  }
  v1::Job job;
  const grpc::Status status = Submit(huge, "huge", &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("spec: expected at most"));
}

TEST_F(ServiceTest, UnknownAndMisspeltJobsAreTold) {
  StartAll();
  grpc::ClientContext context;
  v1::GetJobRequest request;
  v1::Job job;
  request.set_name("jobs/j-none");
  EXPECT_EQ(jobs_->GetJob(&context, request, &job).error_code(),
            grpc::StatusCode::NOT_FOUND);

  grpc::ClientContext context2;
  request.set_name("j-none");
  const grpc::Status status = jobs_->GetJob(&context2, request, &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("name: expected jobs/{job}"));
}

TEST_F(ServiceTest, ListsJobsNewestFirstInPagesAndByState) {
  StartAll();
  std::vector<std::string> names;
  for (int i = 0; i < 5; ++i) {
    names.push_back(MustSubmit(MakeJobSpec(absl::StrCat("/out/", i), 5),
                               absl::StrCat("request-", i))
                        .name());
  }
  v1::Job cancelled;
  ASSERT_TRUE(Cancel(names[1], &cancelled).ok());
  auto list = [&](const v1::ListJobsRequest& request,
                  v1::ListJobsResponse* response) {
    grpc::ClientContext context;
    return jobs_->ListJobs(&context, request, response);
  };

  std::vector<std::string> seen;
  v1::ListJobsRequest request;
  v1::ListJobsResponse response;
  request.set_page_size(2);
  do {
    ASSERT_TRUE(list(request, &response).ok());
    EXPECT_LE(response.jobs_size(), 2);
    for (const v1::Job& job : response.jobs()) seen.push_back(job.name());
    request.set_page_token(response.next_page_token());
  } while (!response.next_page_token().empty());
  EXPECT_EQ(seen, std::vector<std::string>(names.rbegin(), names.rend()));

  v1::ListJobsRequest by_state;
  by_state.add_states(v1::Job::CANCELLED);
  ASSERT_TRUE(list(by_state, &response).ok());
  ASSERT_EQ(response.jobs_size(), 1);
  EXPECT_EQ(response.jobs(0).name(), names[1]);
  EXPECT_EQ(response.next_page_token(), "");

  // A token of another filter, of nobody, and a wrong size.
  request.set_page_token("");
  ASSERT_TRUE(list(request, &response).ok());
  by_state.set_page_token(response.next_page_token());
  EXPECT_EQ(list(by_state, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  request.set_page_token("bm9uc2Vuc2U");
  EXPECT_EQ(list(request, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  request.clear_page_token();
  request.set_page_size(-1);
  EXPECT_EQ(list(request, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ServiceTest, CancellingEndsAJobOnce) {
  StartAll();
  const std::string name = MustSubmit(MakeJobSpec("/out", 5), "r").name();
  v1::Job job;

  ASSERT_TRUE(Cancel(name, &job).ok());
  EXPECT_EQ(job.state(), v1::Job::CANCELLED);
  EXPECT_THAT(job.state_reason(), HasSubstr("enough"));
  EXPECT_TRUE(job.has_end_time());
  ASSERT_TRUE(Cancel(name, &job).ok());
  EXPECT_EQ(job.state(), v1::Job::CANCELLED);
  EXPECT_EQ(Cancel("jobs/j-none", &job).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(ServiceTest, AWatchedJobIsSentAsItIsThenAsItChangesThenEnds) {
  StartAll();
  const std::string name = MustSubmit(MakeJobSpec("/out", 5), "r").name();
  grpc::ClientContext context;
  v1::WatchJobRequest request;
  request.set_name(name);
  auto stream = jobs_->WatchJob(&context, request);
  v1::WatchJobResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.job().state(), v1::Job::QUEUED);

  v1::Job job;
  ASSERT_TRUE(Cancel(name, &job).ok());

  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.job().state(), v1::Job::CANCELLED);
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());

  // Of a job that has ended: its final state, at once.
  grpc::ClientContext again;
  stream = jobs_->WatchJob(&again, request);
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.job().state(), v1::Job::CANCELLED);
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());

  grpc::ClientContext unknown;
  request.set_name("jobs/j-none");
  stream = jobs_->WatchJob(&unknown, request);
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
}

// ---------------------------------------------------------------- workers

TEST_F(ServiceTest, TwoWorkersTrainAJobToTheEnd) {
  StartAll();
  const std::string name = MustSubmit(MakeJobSpec("/out", 6, 2, 2), "r").name();
  FakeWorker a(NewChannel(), "w-a");
  FakeWorker b(NewChannel(), "w-b");
  a.Connect();
  EXPECT_THAT(WaitForJob(name,
                         [](const v1::Job& job) {
                           return job.state_reason().find("1 is present") !=
                                  std::string::npos;
                         })
                  .state_reason(),
              HasSubstr("needs 2 workers"));
  b.Connect();

  ASSERT_TRUE(a.JoinNextGeneration());
  ASSERT_TRUE(b.JoinNextGeneration());
  EXPECT_EQ(a.prepare().rank(), 0);
  EXPECT_EQ(b.prepare().rank(), 1);
  EXPECT_THAT(std::vector<std::string>(a.prepare().workers().begin(),
                                       a.prepare().workers().end()),
              ElementsAre("w-a", "w-b"));
  EXPECT_EQ(a.prepare().spec().data().stride(), 16);
  ASSERT_TRUE(a.StartTraining());
  ASSERT_TRUE(b.StartTraining());
  EXPECT_EQ(a.start().peer_addresses(1), "w-b-for-0");
  EXPECT_EQ(b.start().peer_addresses(0), "w-a-for-1");
  EXPECT_EQ(a.start().micro_batches(0).count(), 2);
  EXPECT_EQ(b.start().nonce(), "nonce");

  a.SendReports(0, 3);
  b.SendReports(0, 3);
  ASSERT_TRUE(a.WaitForAck(3));
  ASSERT_TRUE(b.WaitForAck(3));
  const v1::Job running = WaitForJob(name, [](const v1::Job& job) {
    return job.progress().step_count() == 3;
  });
  EXPECT_EQ(running.state(), v1::Job::RUNNING);
  EXPECT_THAT(std::vector<std::string>(running.workers().begin(),
                                       running.workers().end()),
              ElementsAre("workers/w-a", "workers/w-b"));
  EXPECT_EQ(running.progress().max_steps(), 6);
  EXPECT_EQ(running.progress().token_count(), 3 * 8 * 16);
  EXPECT_NEAR(running.progress().loss(), 4.98, 1e-12);
  EXPECT_NEAR(running.progress().tokens_per_second(), 1280, 1e-6);
  EXPECT_EQ(running.progress().remaining().nanos(), 300'000'000);

  grpc::ClientContext context;
  v1::GetStragglersRequest stragglers_request;
  stragglers_request.set_job(name);
  v1::GetStragglersResponse stragglers;
  ASSERT_TRUE(
      monitor_->GetStragglers(&context, stragglers_request, &stragglers).ok());
  EXPECT_EQ(stragglers.generation(), 1);
  EXPECT_EQ(stragglers.first_step(), 0);
  EXPECT_EQ(stragglers.last_step(), 2);
  ASSERT_EQ(stragglers.ranks_size(), 2);
  EXPECT_FALSE(stragglers.ranks(0).straggler());
  EXPECT_TRUE(stragglers.ranks(1).straggler());
  EXPECT_EQ(stragglers.ranks(1).slow_phase(), "backward");
  EXPECT_EQ(stragglers.ranks(1).worker(), "workers/w-b");
  EXPECT_NEAR(stragglers.ranks(1).score(), 100. / 60, 1e-9);
  EXPECT_EQ(stragglers.ranks(1).phase(), v1::Worker::TRAINING);

  const auto workers = Workers();
  ASSERT_EQ(workers.size(), 2u);
  EXPECT_EQ(workers[1].name(), "workers/w-b");
  EXPECT_EQ(workers[1].state(), v1::Worker::BUSY);
  EXPECT_EQ(workers[1].job(), name);
  EXPECT_EQ(workers[1].rank(), 1);
  EXPECT_EQ(workers[1].device().host(), "host-of-w-b");

  a.SendReports(3, 6);
  b.SendReports(3, 6);
  a.TellPhase(v1::Worker::OUTPUT_READY);
  b.TellPhase(v1::Worker::OUTPUT_READY);
  ASSERT_TRUE(a.CommitAndRelease());
  ASSERT_TRUE(b.CommitAndRelease());

  const v1::Job done = WaitForState(name, v1::Job::COMPLETED);
  EXPECT_EQ(done.progress().step_count(), 6);
  EXPECT_NEAR(done.progress().loss(), 4.95, 1e-12);
  EXPECT_FALSE(done.progress().has_remaining());
  EXPECT_TRUE(done.has_start_time());
  EXPECT_TRUE(done.has_end_time());
  EXPECT_EQ(Rows(name).size(), 12u);
  v1::Job cancelled;
  EXPECT_EQ(Cancel(name, &cancelled).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  WaitForWorker("workers/w-a", [](const v1::Worker& worker) {
    return worker.state() == v1::Worker::IDLE && worker.job().empty();
  });
}

TEST_F(ServiceTest, StepsAreListedByRangeAndPage) {
  StartAll();
  const std::string name = MustSubmit(MakeJobSpec("/out", 9, 1, 1), "r").name();
  FakeWorker worker(NewChannel(), "w");
  worker.Connect();
  ASSERT_TRUE(worker.JoinNextGeneration());
  ASSERT_TRUE(worker.StartTraining());
  worker.SendReports(0, 5);
  ASSERT_TRUE(worker.WaitForAck(5));

  v1::ListStepMetricsRequest request;
  request.set_job(name);
  request.set_first_step(1);
  request.set_last_step(3);
  EXPECT_THAT(Rows(request), ElementsAre("1/0@1", "2/0@1", "3/0@1"));
  request.set_page_size(2);
  grpc::ClientContext context;
  v1::ListStepMetricsResponse response;
  ASSERT_TRUE(monitor_->ListStepMetrics(&context, request, &response).ok());
  EXPECT_EQ(response.step_metrics_size(), 2);
  request.set_page_token(response.next_page_token());
  EXPECT_THAT(Rows(request), ElementsAre("3/0@1"));

  const auto code = [&](const v1::ListStepMetricsRequest& wrong) {
    grpc::ClientContext c;
    v1::ListStepMetricsResponse r;
    return monitor_->ListStepMetrics(&c, wrong, &r).error_code();
  };
  v1::ListStepMetricsRequest wrong = request;
  wrong.set_last_step(4);  // Not the list of the token.
  EXPECT_EQ(code(wrong), grpc::StatusCode::INVALID_ARGUMENT);
  wrong.clear_page_token();
  wrong.set_last_step(0);
  EXPECT_EQ(code(wrong), grpc::StatusCode::INVALID_ARGUMENT);
  wrong.set_job("jobs/j-none");
  wrong.clear_last_step();
  EXPECT_EQ(code(wrong), grpc::StatusCode::NOT_FOUND);
}

TEST_F(ServiceTest, ReportsSentAgainAreAcknowledgedAndStoredOnce) {
  StartAll();
  const std::string name = MustSubmit(MakeJobSpec("/out", 9), "r").name();
  FakeWorker worker(NewChannel(), "w");
  worker.Connect();
  ASSERT_TRUE(worker.JoinNextGeneration());
  ASSERT_TRUE(worker.StartTraining());
  worker.SendReports(0, 3);
  ASSERT_TRUE(worker.WaitForAck(3));

  // The acknowledgement was lost with the stream.
  worker.Connect();
  worker.ResendReports();
  const auto ack = worker.Next();
  ASSERT_TRUE(ack.has_value());
  EXPECT_EQ(ack->step_reports_ack().sequence(), 3);
  worker.SendReports(3, 4);
  ASSERT_TRUE(worker.WaitForAck(4));

  EXPECT_THAT(Rows(name), ElementsAre("0/0@1", "1/0@1", "2/0@1", "3/0@1"));
}

TEST_F(ServiceTest, ReportsOfOthersRanksAreAcknowledgedAndNotBelieved) {
  StartAll();
  const std::string name = MustSubmit(MakeJobSpec("/out", 9), "r").name();
  FakeWorker member(NewChannel(), "w-1");
  member.Connect();
  ASSERT_TRUE(member.JoinNextGeneration());
  ASSERT_TRUE(member.StartTraining());
  FakeWorker stranger(NewChannel(), "w-2");
  stranger.Connect();

  // Claims the member's place; then a generation that is not.
  stranger.held() = member.held();
  stranger.SendReports(0, 2);
  ASSERT_TRUE(stranger.WaitForAck(2));
  member.held().set_generation(2);
  member.SendReports(0, 2);
  ASSERT_TRUE(member.WaitForAck(2));
  EXPECT_THAT(Rows(name), IsEmpty());

  member.held().set_generation(1);
  member.SendReports(0, 1);
  ASSERT_TRUE(member.WaitForAck(3));
  EXPECT_THAT(Rows(name), ElementsAre("0/0@1"));
}

TEST_F(ServiceTest, ANameThatIsTakenIsRefused) {
  StartAll();
  FakeWorker first(NewChannel(), "w", /*incarnation=*/1);
  first.Connect();

  FakeWorker second(NewChannel(), "w", /*incarnation=*/2);
  second.OpenStream();
  second.SendHello();
  const grpc::Status status = second.Finish();

  EXPECT_EQ(status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_THAT(status.error_message(), HasSubstr("host-of-w"));

  // The first is not disturbed.
  MustSubmit(MakeJobSpec("/out", 1), "r");
  EXPECT_TRUE(first.JoinNextGeneration());
}

TEST_F(ServiceTest, ANewerStreamOfAWorkerTakesOver) {
  StartAll();
  FakeWorker old_stream(NewChannel(), "w");
  old_stream.Connect();

  FakeWorker new_stream(NewChannel(), "w");
  new_stream.Connect();
  new_stream.Connect();  // Stream 2 of the same incarnation.

  EXPECT_EQ(old_stream.Finish().error_code(), grpc::StatusCode::ABORTED);
  MustSubmit(MakeJobSpec("/out", 1), "r");
  EXPECT_TRUE(new_stream.JoinNextGeneration());
}

TEST_F(ServiceTest, AMessageThatBreaksTheRulesEndsTheStream) {
  StartAll();
  FakeWorker worker(NewChannel(), "w");
  auto expect = [&](const std::string& text) {
    const grpc::Status status = worker.Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr(text));
  };

  worker.OpenStream();
  worker.SendStatus();
  expect("the first of a stream must be hello");

  worker.OpenStream();
  worker.Send({});
  expect("expected hello, status or step_reports");

  worker.Connect();
  worker.SendHello();
  expect("hello: only the first message may be one");

  worker.Connect();
  worker.held().set_job("no job!");
  worker.SendStatus();
  expect("status: held: job: expected");
  worker.status().clear_held();

  worker.Connect();
  worker.held().set_job("j");
  worker.held().set_generation(1);
  worker.SendReports(0, 257);
  expect("step_reports: reports: expected at most 256, got 257");

  worker.status().clear_held();
  worker.Connect();
  worker.held().set_job("j");
  worker.SendReports(0, 1);
  expect("step_reports: reports[0]: generation: expected at least 1, got 0");

  FakeWorker misnamed(NewChannel(), "W");
  misnamed.OpenStream();
  misnamed.SendHello();
  const grpc::Status status = misnamed.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("hello: worker: expected"));
}

TEST_F(ServiceTest, AWorkerThatLeavesIsGoneAndOneThatBreaksOffIsAwaited) {
  StartAll();
  FakeWorker leaver(NewChannel(), "w-leaver");
  leaver.Connect();
  FakeWorker breaker(NewChannel(), "w-breaker");
  breaker.Connect();

  leaver.HalfClose();
  EXPECT_TRUE(leaver.Finish().ok());
  breaker.Break();
  breaker.Finish();

  EXPECT_THAT(WaitForWorker("workers/w-leaver",
                            [](const v1::Worker& worker) {
                              return worker.state() == v1::Worker::LOST;
                            })
                  .state_reason(),
              HasSubstr("stopped"));
  WaitForWorker("workers/w-breaker", [](const v1::Worker& worker) {
    return worker.state() == v1::Worker::SUSPECT;
  });
  breaker.Connect();
  EXPECT_EQ(WaitForWorker("workers/w-breaker",
                          [](const v1::Worker& worker) {
                            return worker.state() == v1::Worker::IDLE;
                          })
                .state_reason(),
            "");
}

TEST_F(ServiceTest, TheJobOfAWorkerThatFellSilentFormsAnew) {
  core_options_.lease = absl::Milliseconds(400);
  StartAll();
  const std::string name = MustSubmit(MakeJobSpec("/out", 9), "r").name();
  FakeWorker silent(NewChannel(), "w-1");
  silent.Connect();
  ASSERT_TRUE(silent.JoinNextGeneration());

  // Nothing more is heard of it.
  FakeWorker spare(NewChannel(), "w-2");
  spare.Connect();
  std::atomic<bool> done = false;
  // Beats as a worker does.
  std::thread beats([&] {
    Mutex mutex;
    CondVar never;
    MutexLock lock(&mutex);
    while (!done) {
      never.WaitFor(&mutex, absl::Milliseconds(50));
      v1::WorkerMessage message;
      *message.mutable_status() = v1::WorkerStatus();
      message.mutable_status()->set_trainer_ready(true);
      spare.Send(message);
    }
  });
  const v1::Job anew = WaitForJob(
      name, [](const v1::Job& job) { return job.generation() == 2; });
  done = true;
  beats.join();

  EXPECT_THAT(
      std::vector<std::string>(anew.workers().begin(), anew.workers().end()),
      ElementsAre("workers/w-2"));
  EXPECT_EQ(silent.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

// --------------------------------------------------------------- watching

TEST_F(ServiceTest, WatchedStepsComeFromTheStoreThenLiveWithoutGapOrRepeat) {
  StartAll();
  constexpr int kSteps = 3000;
  const std::string name = MustSubmit(MakeJobSpec("/out", kSteps), "r").name();
  FakeWorker worker(NewChannel(), "w");
  worker.Connect();
  ASSERT_TRUE(worker.JoinNextGeneration());
  ASSERT_TRUE(worker.StartTraining());
  worker.SendReports(0, 100);
  ASSERT_TRUE(worker.WaitForAck(100));

  // Three watchers begin at different moments while steps go on.
  std::atomic<int> sent = 100;
  std::thread reports([&] {
    for (int step = 100; step < kSteps; step += 20) {
      worker.SendReports(step, step + 20);
      sent = step + 20;
    }
  });
  std::vector<std::thread> watchers;
  for (const int begin : {100, 900, 2000}) {
    watchers.emplace_back([&, begin] {
      while (sent < begin) std::this_thread::yield();
      grpc::ClientContext context;
      v1::WatchStepMetricsRequest request;
      request.set_job(name);
      request.set_first_step(50);
      auto stream = monitor_->WatchStepMetrics(&context, request);
      v1::WatchStepMetricsResponse response;
      std::vector<int64_t> steps;
      while (stream->Read(&response)) {
        EXPECT_EQ(response.dropped_count(), 0);
        for (const v1::StepMetrics& row : response.step_metrics()) {
          EXPECT_EQ(row.worker(), "workers/w");
          steps.push_back(row.step());
        }
      }
      EXPECT_TRUE(stream->Finish().ok());
      ASSERT_EQ(steps.size(), kSteps - 50u);
      for (size_t i = 0; i < steps.size(); ++i) ASSERT_EQ(steps[i], 50 + i);
    });
  }
  reports.join();
  worker.TellPhase(v1::Worker::OUTPUT_READY);
  ASSERT_TRUE(worker.CommitAndRelease());
  for (std::thread& watcher : watchers) watcher.join();
}

TEST_F(ServiceTest, AWatcherThatReadsTooSlowlyMissesRowsAndIsToldHowMany) {
  StartAll();
  constexpr int kSteps = 40'000;
  const std::string name = MustSubmit(MakeJobSpec("/out", kSteps), "r").name();
  FakeWorker worker(NewChannel(), "w");
  worker.Connect();
  ASSERT_TRUE(worker.JoinNextGeneration());
  ASSERT_TRUE(worker.StartTraining());
  worker.SendReports(0, 1);
  ASSERT_TRUE(worker.WaitForAck(1));
  // A client whose connection takes little that it has not read.
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 16 << 10);
  auto slow = v1::MonitorService::NewStub(
      grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", server_->port()),
                                grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  v1::WatchStepMetricsRequest request;
  request.set_job(name);
  auto stream = slow->WatchStepMetrics(&context, request);
  v1::WatchStepMetricsResponse response;
  ASSERT_TRUE(stream->Read(&response));

  // Nobody reads while these come; neither store nor worker wait for that.
  for (int step = 1; step < kSteps; step += 250) {
    worker.SendReports(step, std::min(step + 250, kSteps));
  }
  ASSERT_TRUE(worker.WaitForAck(kSteps));
  worker.TellPhase(v1::Worker::OUTPUT_READY);
  ASSERT_TRUE(worker.CommitAndRelease());
  WaitForState(name, v1::Job::COMPLETED);

  int64_t rows = response.step_metrics_size();
  int64_t last = -1;
  int64_t dropped = 0;
  while (stream->Read(&response)) {
    rows += response.step_metrics_size();
    dropped = response.dropped_count();
    for (const v1::StepMetrics& row : response.step_metrics()) {
      EXPECT_GT(row.step(), last);
      last = row.step();
    }
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_GT(dropped, 0);
  EXPECT_EQ(rows + dropped, kSteps);
  EXPECT_EQ(last, kSteps - 1);
  EXPECT_GE(rows, kWatchedRowsMax);
}

TEST_F(ServiceTest, AWatchedJobIsSentAtMostTenTimesASecond) {
  StartAll();
  constexpr int kSteps = 300;
  const std::string name = MustSubmit(MakeJobSpec("/out", kSteps), "r").name();
  FakeWorker worker(NewChannel(), "w");
  worker.Connect();
  ASSERT_TRUE(worker.JoinNextGeneration());
  ASSERT_TRUE(worker.StartTraining());
  grpc::ClientContext context;
  v1::WatchJobRequest request;
  request.set_name(name);
  auto stream = jobs_->WatchJob(&context, request);
  v1::WatchJobResponse response;
  ASSERT_TRUE(stream->Read(&response));
  const absl::Time begin = RealClock().WallNow();

  for (int step = 0; step < kSteps; ++step) {
    worker.SendReports(step, step + 1);
    ASSERT_TRUE(worker.WaitForAck(step + 1));
  }
  worker.TellPhase(v1::Worker::OUTPUT_READY);
  ASSERT_TRUE(worker.CommitAndRelease());

  int count = 0;
  while (stream->Read(&response)) ++count;
  const double seconds = absl::ToDoubleSeconds(RealClock().WallNow() - begin);
  EXPECT_EQ(response.job().state(), v1::Job::COMPLETED);
  EXPECT_EQ(response.job().progress().step_count(), kSteps);
  // The final one does not wait.
  EXPECT_LE(count, 10 * seconds + 2);
}

// ------------------------------------------------------------------ store

TEST_F(ServiceTest, NothingIsAnsweredBeforeItIsDurableAndOneCommitTakesAll) {
  StartAll();
  Mutex mutex;
  CondVar changed;
  int answered = 0;
  // Returns once the core has decided.
  const auto submit = [&](int i) {
    JobRequest request;
    request.request_id = absl::StrCat("r", i);
    request.spec =
        ResolveJobSpec(MakeJobSpec(absl::StrCat("/out/", i), 5)).value();
    shell_->SubmitJob(std::move(request), [&](absl::StatusOr<JobSnapshot> job) {
      EXPECT_TRUE(job.ok());
      MutexLock lock(&mutex);
      ++answered;
      changed.SignalAll();
    });
  };
  const int before = store_->apply_count();
  store_->Hold();

  submit(0);
  store_->WaitForApplies(before + 1);
  for (int i = 1; i <= 8; ++i) submit(i);

  grpc::ClientContext context;
  v1::ListJobsResponse listed;
  ASSERT_TRUE(jobs_->ListJobs(&context, {}, &listed).ok());
  EXPECT_EQ(listed.jobs_size(), 0);
  {
    MutexLock lock(&mutex);
    EXPECT_EQ(answered, 0);
  }
  store_->Release();
  {
    MutexLock lock(&mutex);
    while (answered < 9) changed.Wait(&mutex);
  }
  EXPECT_EQ(store_->apply_count() - before, 2);
}

TEST_F(ServiceTest, WhenTheStoreFailsNothingThatDependsOnItIsSaid) {
  StartAll();
  FakeWorker worker(NewChannel(), "w");
  worker.Connect();
  store_->Fail(absl::ResourceExhaustedError("the disk is full"));
  v1::Job job;

  const grpc::Status status = Submit(MakeJobSpec("/out", 5), "r", &job);

  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("the disk is full"));
  // The job was placed, in thought; the worker never hears of it.
  EXPECT_FALSE(worker.Next().has_value());
  EXPECT_EQ(worker.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  {
    MutexLock lock(&failure_mutex_);
    while (!store_failure_.has_value()) failure_changed_.Wait(&failure_mutex_);
    EXPECT_EQ(store_failure_->code(), absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(Submit(MakeJobSpec("/out2", 5), "r2", &job).error_code(),
            grpc::StatusCode::UNAVAILABLE);

  // The next start knows nothing of it.
  StopAll();
  StartAll();
  grpc::ClientContext context;
  v1::ListJobsResponse listed;
  ASSERT_TRUE(jobs_->ListJobs(&context, {}, &listed).ok());
  EXPECT_EQ(listed.jobs_size(), 0);
}

TEST_F(ServiceTest, AJobGoesOnOverARestart) {
  StartAll();
  const std::string name = MustSubmit(MakeJobSpec("/out", 6), "r").name();
  FakeWorker worker(NewChannel(), "w");
  worker.Connect();
  ASSERT_TRUE(worker.JoinNextGeneration());
  ASSERT_TRUE(worker.StartTraining());
  worker.SendReports(0, 3);
  ASSERT_TRUE(worker.WaitForAck(3));
  WaitForState(name, v1::Job::RUNNING);

  StopAll();
  EXPECT_EQ(worker.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  StartAll();

  const v1::Job loaded = Get(name);
  EXPECT_EQ(loaded.state(), v1::Job::RUNNING);
  EXPECT_EQ(loaded.generation(), 1);
  EXPECT_THAT(loaded.state_reason(), HasSubstr("reattach"));
  EXPECT_EQ(loaded.progress().step_count(), 3);
  EXPECT_NEAR(loaded.progress().loss(), 4.98, 1e-12);

  FakeWorker again(NewChannel(), "w");
  again.status() = worker.status();
  again.Connect();
  EXPECT_EQ(again.coordinator_incarnation(),
            worker.coordinator_incarnation() + 1);
  again.SendReports(3, 6);
  again.TellPhase(v1::Worker::OUTPUT_READY);
  ASSERT_TRUE(again.CommitAndRelease());
  const v1::Job done = WaitForState(name, v1::Job::COMPLETED);
  EXPECT_EQ(done.generation(), 1);
  EXPECT_EQ(Rows(name).size(), 6u);
}

// ----------------------------------------------------------------- server

// The standard health service, by hand: Debian has no header of its stubs.
std::string HealthOf(const std::shared_ptr<grpc::Channel>& channel,
                     const std::string& service, grpc::Status* status) {
  grpc::GenericStub stub(channel);
  // HealthCheckRequest: field 1, the service's name.
  std::string bytes;
  if (!service.empty()) {
    bytes = absl::StrCat(
        "\x0A", std::string(1, static_cast<char>(service.size())), service);
  }
  grpc::Slice slice(bytes);
  grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  grpc::ClientContext context;
  Mutex mutex;
  CondVar changed;
  bool done = false;
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", {}, &request,
                 &response, [&](grpc::Status s) {
                   MutexLock lock(&mutex);
                   *status = s;
                   done = true;
                   changed.SignalAll();
                 });
  MutexLock lock(&mutex);
  while (!done) changed.Wait(&mutex);
  grpc::Slice out;
  if (!status->ok() || !response.DumpToSingleSlice(&out).ok()) return "";
  return std::string(reinterpret_cast<const char*>(out.begin()), out.size());
}

TEST_F(ServiceTest, HealthAnswersForTheServerAndEachService) {
  StartAll();
  // HealthCheckResponse: field 1, 1 for SERVING.
  const std::string serving("\x08\x01");
  grpc::Status status;

  for (const char* service :
       {"", "lockstep.v1.JobService", "lockstep.v1.MonitorService",
        "lockstep.v1.WorkerService"}) {
    EXPECT_EQ(HealthOf(channel_, service, &status), serving) << service;
  }
  HealthOf(channel_, "no.Such", &status);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(ServiceTest, ReflectionNamesTheServices) {
  StartAll();
  grpc::GenericStub stub(channel_);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  void* tag = nullptr;
  bool ok = false;
  const auto wait = [&] { ASSERT_TRUE(queue.Next(&tag, &ok) && ok); };
  auto call = stub.PrepareCall(
      &context,
      "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  call->StartCall(nullptr);
  wait();
  // ServerReflectionRequest: field 7, list_services.
  const grpc::Slice slice(std::string("\x3A\x01*"));
  call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
  wait();

  grpc::ByteBuffer response;
  call->Read(&response, nullptr);
  wait();

  grpc::Slice out;
  ASSERT_TRUE(response.DumpToSingleSlice(&out).ok());
  const std::string text(reinterpret_cast<const char*>(out.begin()),
                         out.size());
  for (const char* service :
       {"lockstep.v1.JobService", "lockstep.v1.MonitorService",
        "lockstep.v1.WorkerService", "grpc.health.v1.Health"}) {
    EXPECT_THAT(text, HasSubstr(service));
  }
  context.TryCancel();
  grpc::Status status;
  call->Finish(&status, nullptr);
  queue.Next(&tag, &ok);
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
}

TEST_F(ServiceTest, StoppingEndsStreamsAndRefusesWhatComes) {
  StartAll();
  const std::string name = MustSubmit(MakeJobSpec("/out", 5, 2, 2), "r").name();
  FakeWorker worker(NewChannel(), "w");
  worker.Connect();
  grpc::ClientContext job_context;
  v1::WatchJobRequest job_request;
  job_request.set_name(name);
  auto job_stream = jobs_->WatchJob(&job_context, job_request);
  v1::WatchJobResponse job;
  ASSERT_TRUE(job_stream->Read(&job));
  grpc::ClientContext step_context;
  v1::WatchStepMetricsRequest step_request;
  step_request.set_job(name);
  auto step_stream = monitor_->WatchStepMetrics(&step_context, step_request);
  step_stream->WaitForInitialMetadata();

  const absl::Time begin = RealClock().WallNow();
  server_->Stop();
  EXPECT_LT(RealClock().WallNow() - begin, absl::Seconds(5));

  EXPECT_EQ(worker.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  while (job_stream->Read(&job)) {
  }
  EXPECT_EQ(job_stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  v1::WatchStepMetricsResponse steps;
  while (step_stream->Read(&steps)) {
  }
  EXPECT_EQ(step_stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  bool answered = false;
  shell_->CancelJob({"j"}, "", [&](absl::StatusOr<JobSnapshot> result) {
    answered = true;
    EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable);
  });
  EXPECT_TRUE(answered);
}

}  // namespace
}  // namespace lockstep
