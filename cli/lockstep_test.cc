#include "cli/lockstep.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/exit_code.h"
#include "cli/fake_coordinator.h"
#include "common/clock.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

template <typename T>
T FromText(const std::string& text) {
  T message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message))
      << text;
  return message;
}

constexpr char kJobFile[] = R"(model:
  gpt2: {vocab_size: 256, n_embd: 64, n_layer: 2, n_head: 4}
data:
  files: [a.txt]
  format: BYTES
  sequence_length: 64
batch:
  global_batch_size: 16
  micro_batch_size: 2
schedule:
  max_steps: 300
  peak_learning_rate: 2e-3
output_directory: out
)";

struct Result {
  int code = -1;
  std::string out;
  std::string err;
};

class LockstepTest : public ::testing::Test {
 protected:
  LockstepTest()
      : folder_(fs::path(testing::TempDir()) /
                testing::UnitTest::GetInstance()->current_test_info()->name()) {
    fs::create_directories(folder_);
    job_file_ = (folder_ / "job.yaml").string();
    Write(job_file_, kJobFile);
  }

  void Write(const std::string& path, const std::string& text) {
    std::ofstream(path) << text;
  }

  // Runs a command line against the fake coordinator; the time-out is long, so
  // that nothing here depends on how fast the machine is.
  Result Run(std::vector<std::string> args) {
    args.insert(args.end(),
                {"--coordinator", coordinator_->address(), "--timeout", "60s"});
    return RunAlone(args);
  }

  Result RunAlone(const std::vector<std::string>& args) {
    std::ostringstream out, err;
    Environment env{
        .out = out,
        .err = err,
        .clock = RealClock(),
        .terminal = terminal_,
        .variable = [this](const char* name) -> std::optional<std::string> {
          if (std::string(name) != "LOCKSTEP_COORDINATOR") return std::nullopt;
          return variable_;
        },
        .make_request_id =
            [this] { return absl::StrCat("request-", ++request_count_); },
        .working_folder = "/here",
        .program_folder = "/nowhere",
    };
    Result result;
    result.code = RunLockstep(args, env);
    result.out = out.str();
    result.err = err.str();
    return result;
  }

  v1::Job AddJob(const std::string& text) {
    const auto job = FromText<v1::Job>(text);
    coordinator_->AddJob(job);
    return job;
  }

  std::unique_ptr<FakeCoordinator> coordinator_ =
      std::make_unique<FakeCoordinator>();
  const fs::path folder_;
  std::string job_file_;
  std::optional<std::string> variable_;
  bool terminal_ = false;
  int request_count_ = 0;
};

// --- the command line

TEST_F(LockstepTest, HelpTeachesAndFitsTheScreen) {
  const Result top = RunAlone({"--help"});
  EXPECT_EQ(top.code, kExitOk);
  EXPECT_EQ(top.err, "");
  for (const char* text : {"LOCKSTEP_COORDINATOR", "Exit codes:", "  5  the",
                           "lockstep run job.yaml"}) {
    EXPECT_THAT(top.out, HasSubstr(text));
  }
  for (const char* command : {"run", "submit", "watch", "get", "list", "cancel",
                              "metrics", "workers", "stragglers"}) {
    EXPECT_THAT(top.out, HasSubstr(absl::StrCat("\n  ", command, " ")));
    const Result help = RunAlone({command, "--help"});
    EXPECT_EQ(help.code, kExitOk);
    EXPECT_THAT(help.out, HasSubstr(absl::StrCat("lockstep ", command)));
    for (absl::string_view line : absl::StrSplit(help.out, '\n')) {
      EXPECT_LE(line.size(), 80u) << line;
    }
  }
}

TEST_F(LockstepTest, WrongUsageIsOneErrorAndCode2) {
  struct {
    std::vector<std::string> args;
    const char* error;
  } const kCases[] = {
      {{"sumbit"}, "no such command: sumbit; did you mean submit?"},
      {{"frobnicate"},
       "no such command: frobnicate; there are run, plan, submit, "},
      {{"submit"}, "FILE is required"},
      {{"get"}, "JOB is required"},
      {{"list", "extra"}, "not expected: extra"},
      {{"list", "--bogus"}, "not expected: --bogus"},
      {{"list", "--limit", "0"}, "--limit: Value 0 not in range"},
      {{"list", "--limit", "x"}, "--limit"},
      {{"list", "--state", "RUNING"}, "--state: expected QUEUED, FORMING, "},
      {{"list", "--timeout", "soon"},
       "--timeout: expected a duration above 0, such as"},
      {{"list", "--timeout", "5"},
       "--timeout: expected a duration above 0, such as"},
      {{"list", "--timeout", "0"},
       "--timeout: expected a duration above 0, such as"},
      {{"list", "--timeout", "-1s"},
       "--timeout: expected a duration above 0, such as"},
      {{"list", "--timeout", "inf"},
       "--timeout: expected a duration above 0, such as"},
      {{"list", "--coordinator", "host"},
       "coordinator: expected HOST:PORT, such as 127.0.0.1:7600, got \"host\""},
      {{"list", "--coordinator", "host:0"}, "coordinator: expected HOST:PORT"},
      {{"list", "--coordinator", "host:65536"},
       "coordinator: expected HOST:PORT"},
      {{"list", "--coordinator", ":7600"}, "coordinator: expected HOST:PORT"},
      {{"metrics", "a", "--csv", "--json"}, "excludes"},
      {{"metrics", "a", "--steps", "9:5"}, "--steps: expected FIRST:LAST"},
      {{"metrics", "a", "--steps", "1:5", "--follow"}, "--follow: expected"},
      {{"get", "a", "--yaml", "--json"}, "excludes"},
      {{"stragglers", "a", "--window", "0"}, "--window"},
      {{"run", job_file_, "--workers", "0"}, "--workers"},
      {{"run", job_file_, "--threads", "-1"}, "--threads"},
  };
  for (const auto& c : kCases) {
    const Result result = RunAlone(c.args);
    SCOPED_TRACE(result.err);
    EXPECT_EQ(result.code, kExitUsage);
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, StartsWith("lockstep: error: "));
    EXPECT_THAT(result.err, HasSubstr(c.error));
  }
  EXPECT_EQ(RunAlone({}).code, kExitUsage);
  EXPECT_EQ(coordinator_->call_count(), 0);
}

TEST_F(LockstepTest, TheCoordinatorMayComeFromTheEnvironment) {
  variable_ = coordinator_->address();
  EXPECT_EQ(RunAlone({"list"}).code, kExitOk);

  variable_ = "nonsense";
  EXPECT_THAT(RunAlone({"list"}).err, HasSubstr("got \"nonsense\""));
  // The option wins.
  EXPECT_EQ(Run({"list"}).code, kExitOk);
}

// --- calls

TEST_F(LockstepTest, AnUnreachableCoordinatorIsToldOfOnceAndIsCode5) {
  const std::string address = coordinator_->address();
  coordinator_.reset();

  const Result result =
      RunAlone({"list", "--coordinator", address, "--timeout", "300ms"});

  EXPECT_EQ(result.code, kExitUnreachable);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err,
              StartsWith(absl::StrCat("lockstep: coordinator ", address,
                                      " does not answer (")));
  EXPECT_THAT(result.err,
              HasSubstr(absl::StrCat("\nlockstep: error: coordinator ", address,
                                     " did not answer within 300ms (")));
  EXPECT_THAT(result.err, HasSubstr("is lockstep-coordinator running there?"));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 2);
}

TEST_F(LockstepTest, ACoordinatorThatHangsIsCode5) {
  coordinator_->Hang();
  const Result result = RunAlone(
      {"list", "--coordinator", coordinator_->address(), "--timeout", "300ms"});
  EXPECT_EQ(result.code, kExitUnreachable);
  EXPECT_THAT(result.err, HasSubstr("did not answer within 300ms (no answer)"));
}

TEST_F(LockstepTest, ACallIsMadeAgainUntilItIsTaken) {
  coordinator_->RefuseNext(3);
  const Result result = Run({"list"});
  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_EQ(coordinator_->call_count(), 4);
  EXPECT_THAT(result.err,
              HasSubstr("does not answer (scripted); asking again"));
}

TEST_F(LockstepTest, AnUnknownJobIsCode6) {
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"get", "none"},
                                             {"watch", "none"},
                                             {"cancel", "none"},
                                             {"metrics", "none"},
                                             {"metrics", "none", "--csv"},
                                             {"metrics", "none", "--follow"},
                                             {"stragglers", "none"}}) {
    const Result result = Run(args);
    EXPECT_EQ(result.code, kExitNotFound) << args[0];
    EXPECT_EQ(result.err, "lockstep: error: no such job: jobs/none\n");
  }
}

// --- submit

TEST_F(LockstepTest, SubmitPrintsTheJobsName) {
  const Result result =
      Run({"submit", job_file_, "--set", "batch.global_batch_size=32", "--set",
           "data.files=[b.txt]"});

  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_EQ(result.out, "jobs/job-1\n");
  EXPECT_EQ(result.err, "");
  ASSERT_EQ(coordinator_->submissions().size(), 1u);
  const v1::SubmitJobRequest request = coordinator_->submissions()[0];
  EXPECT_EQ(request.request_id(), "request-1");
  EXPECT_EQ(request.spec().batch().global_batch_size(), 32);
  EXPECT_THAT(request.spec().data().files(), ElementsAre("/here/b.txt"));
  EXPECT_EQ(request.spec().output_directory(), (folder_ / "out").string());
}

TEST_F(LockstepTest, ALostAnswerDoesNotSubmitTwice) {
  coordinator_->LoseNextAnswers(2);

  const Result result = Run({"submit", job_file_});

  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_EQ(result.out, "jobs/job-1\n");
  ASSERT_EQ(coordinator_->submissions().size(), 3u);
  for (const auto& request : coordinator_->submissions()) {
    EXPECT_EQ(request.request_id(), "request-1");
  }
  EXPECT_EQ(coordinator_->job_count(), 1);
}

TEST_F(LockstepTest, ARepeatedRequestIdIsTheSameJob) {
  const std::vector<std::string> args = {"submit", job_file_, "--request-id",
                                         "mine"};
  EXPECT_EQ(Run(args).out, "jobs/job-1\n");
  EXPECT_EQ(Run(args).out, "jobs/job-1\n");
  EXPECT_EQ(Run({"submit", job_file_}).out, "jobs/job-2\n");

  std::vector<std::string> other = args;
  other.insert(other.end(), {"--set", "priority=1"});
  const Result result = Run(other);
  EXPECT_EQ(result.code, kExitUsage);
  EXPECT_EQ(result.err,
            "lockstep: error: request_id was used with another spec\n");
}

TEST_F(LockstepTest, ASubmissionWithoutAnAnswerSaysHowToMakeSure) {
  coordinator_->LoseNextAnswers(1000);
  const Result result =
      RunAlone({"submit", job_file_, "--coordinator", coordinator_->address(),
                "--timeout", "300ms"});
  EXPECT_EQ(result.code, kExitUnreachable);
  EXPECT_THAT(result.err, HasSubstr("with --request-id request-1 does not "
                                    "queue it twice"));
}

TEST_F(LockstepTest, AFaultyFileIsNotSubmitted) {
  Write(job_file_, "batch:\n  global: 1\npriority: x\n");
  const Result result = Run({"submit", job_file_});
  EXPECT_EQ(result.code, kExitUsage);
  EXPECT_EQ(result.err,
            absl::StrCat("lockstep: error: ", job_file_,
                         ":2:3: batch.global: no such field; did you mean "
                         "global_batch_size?\n"
                         "lockstep: error: ",
                         job_file_,
                         ":3:11: priority: expected a whole number, got "
                         "\"x\"\n"));
  EXPECT_EQ(coordinator_->call_count(), 0);

  const Result missing = Run({"submit", "/no/such/file"});
  EXPECT_EQ(missing.code, kExitUsage);
  EXPECT_EQ(missing.err,
            "lockstep: error: cannot read job file /no/such/file: No such file "
            "or directory\n");
}

TEST_F(LockstepTest, WhatTheCoordinatorRefusesIsShownInTheFile) {
  Write(job_file_, absl::StrCat(kJobFile, "parallel:\n  zero_stage: 4\n"));
  const Result result = Run({"submit", job_file_, "--watch"});
  EXPECT_EQ(result.code, kExitUsage);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(
      result.err,
      absl::StrCat("lockstep: error: ", job_file_,
                   ":15:3: parallel.zero_stage: expected 0 to 3, got 4\n"));
}

TEST_F(LockstepTest, PlanShowsWhatAJobNeedsOfTheWorkersThatAreThere) {
  coordinator_->SetWorkers({FromText<v1::Worker>(
      "state: IDLE device { memory_bytes: 1000000000 thread_count: 2 }")});
  const Result fits = Run({"plan", job_file_});
  EXPECT_EQ(fits.code, kExitOk) << fits.err;
  EXPECT_THAT(fits.out, StartsWith("120576 parameters; 1024 tokens a step; "));
  EXPECT_THAT(fits.out, HasSubstr("a worker: 954 MiB, 2 threads\n"));
  EXPECT_THAT(fits.out, HasSubstr("It runs at ZeRO stage 0"));

  coordinator_->SetWorkers({FromText<v1::Worker>(
      "state: IDLE device { memory_bytes: 1000000 thread_count: 2 }")});
  const Result none = Run({"plan", job_file_});
  EXPECT_EQ(none.code, kExitUsage);
  EXPECT_THAT(none.out, HasSubstr("It does not fit 1 such worker."));

  const Result json = Run({"plan", job_file_, "--json"});
  v1::JobPlan plan;
  ASSERT_TRUE(
      google::protobuf::util::JsonStringToMessage(json.out, &plan).ok());
  EXPECT_EQ(plan.rows_size(), 4);
  EXPECT_FALSE(plan.fits());
}

TEST_F(LockstepTest, PlanWithMemoryAsksNoCoordinator) {
  const Result result =
      Run({"plan", job_file_, "--memory", "0.5", "--flops", "1e10",
           "--memory-rate", "1e10", "--network-rate", "1e9"});
  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_THAT(result.out,
              HasSubstr("a worker: 512 MiB, 1 thread, 10 GFLOP/s, memory at "
                        "9.31 GiB/s, collectives at 954 MiB/s\n"));
  EXPECT_THAT(result.out, HasSubstr("BOUND BY"));
  EXPECT_THAT(result.out, HasSubstr(" matmul\n"));
  EXPECT_EQ(coordinator_->call_count(), 0);
}

TEST_F(LockstepTest, PlanSaysThatAFolderMustBeReadableHere) {
  const Result result = Run({"plan", job_file_, "--set",
                             "model={hugging_face_folder: /no/such/folder}"});
  EXPECT_EQ(result.code, kExitUsage);
  EXPECT_THAT(result.err, HasSubstr("cannot be read here"));
  EXPECT_THAT(result.err,
              HasSubstr("plan where it can be, or give model.sizes"));
  EXPECT_EQ(coordinator_->call_count(), 0);
}

TEST_F(LockstepTest, SubmitSaysHowLargeAFoldersModelIsIfItCan) {
  const std::string folder =
      (fs::current_path() / "tests/reference/llama_pretrain").string();
  const auto submit = [&](const std::string& from) {
    const Result result =
        Run({"submit", job_file_, "--set",
             absl::StrCat("model={hugging_face_folder: ", from, "}")});
    EXPECT_EQ(result.code, kExitOk) << result.err;
    return result.err;
  };
  EXPECT_EQ(submit(folder), "");
  const v1::SubmitJobRequest request = coordinator_->submissions()[0];
  const v1::ModelSizes& sizes = request.spec().model().sizes();
  EXPECT_EQ(sizes.model_type(), "llama");
  EXPECT_GT(sizes.num_hidden_layers(), 0);

  EXPECT_THAT(submit("/no/such/folder"),
              ::testing::AllOf(
                  StartsWith("lockstep: note: model.hugging_face_folder: "),
                  HasSubstr("its memory is not planned")));
}

TEST_F(LockstepTest, SubmitAndWatchShowsTheJobToItsEnd) {
  coordinator_->SetCourse({
      FromText<v1::Job>("state: RUNNING"),
      FromText<v1::Job>("state: COMPLETED progress { step_count: 300 "
                        "max_steps: 300 loss: 1.5 }"),
  });
  const Result result = Run({"submit", job_file_, "--watch"});
  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_EQ(result.out,
            absl::StrCat("jobs/job-1\n"
                         "jobs/job-1 QUEUED: no step yet\n"
                         "jobs/job-1 RUNNING: no step yet\n"
                         "jobs/job-1 COMPLETED: step 300/300, loss 1.5000\n"
                         "jobs/job-1 completed: the model is in ",
                         (folder_ / "out").string(), "/model\n"));
}

// --- watch

TEST_F(LockstepTest, WatchEndsAsTheJobDoes) {
  AddJob("name: 'jobs/done' state: COMPLETED");
  AddJob("name: 'jobs/bad' state: FAILED state_reason: 'no\\nspace\\x1b[2J'");
  AddJob("name: 'jobs/off' state: CANCELLED state_reason: 'not needed'");

  EXPECT_EQ(Run({"watch", "done"}).code, kExitOk);
  const Result failed = Run({"watch", "jobs/bad"});
  EXPECT_EQ(failed.code, kExitJobFailed);
  EXPECT_EQ(failed.err,
            "lockstep: error: jobs/bad failed: no\n  space\\033[2J\n");
  const Result cancelled = Run({"watch", "off"});
  EXPECT_EQ(cancelled.code, kExitJobCancelled);
  EXPECT_EQ(cancelled.err, "lockstep: jobs/off was cancelled: not needed\n");
}

TEST_F(LockstepTest, ABrokenWatchGoesOnWithoutRepeatingItself) {
  AddJob("name: 'jobs/a' state: QUEUED");
  coordinator_->SetCourse({
      FromText<v1::Job>("state: FORMING"),
      FromText<v1::Job>("state: RUNNING"),
      FromText<v1::Job>("state: COMPLETED"),
  });
  coordinator_->BreakNextStreamAfter(2);

  const Result result = Run({"watch", "a"});

  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_THAT(result.out, StartsWith("jobs/a QUEUED: no step yet\n"
                                     "jobs/a FORMING: no step yet\n"
                                     "jobs/a RUNNING: no step yet\n"
                                     "jobs/a COMPLETED: no step yet\n"
                                     "jobs/a completed: "));
}

TEST_F(LockstepTest, AWatchOutlivesTheCoordinator) {
  const v1::Job job = AddJob("name: 'jobs/a' state: RUNNING");
  const int port = coordinator_->port();
  std::thread restart([&] {
    // Asked twice: before the stream, and by it.
    while (coordinator_->call_count() < 2) {
      std::this_thread::yield();
    }
    coordinator_.reset();
    coordinator_ = std::make_unique<FakeCoordinator>(port);
    AddJob("name: 'jobs/a' state: COMPLETED");
  });

  const Result result =
      RunAlone({"watch", "a", "--timeout", "60s", "--coordinator",
                absl::StrCat("127.0.0.1:", port)});

  restart.join();
  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_THAT(result.out, HasSubstr("jobs/a COMPLETED"));
}

TEST_F(LockstepTest, OnATerminalWatchDrawsABar) {
  terminal_ = true;
  AddJob(
      "name: 'jobs/a' state: FAILED state_reason: 'disk full' progress { "
      "step_count: 30 max_steps: 40 loss: 2 }");
  const Result result = Run({"watch", "a"});
  EXPECT_THAT(result.out, StartsWith("\rFAILED ["));
  EXPECT_THAT(result.out, HasSubstr("  75% 30/40  loss 2.0000"));
  EXPECT_THAT(result.out, ::testing::EndsWith("\x1B[K\n"));
}

// --- get, list, cancel

constexpr char kRunning[] = R"(
  name: "jobs/a1" state: RUNNING generation: 2
  spec { display_name: "King James" output_directory: "/out" priority: 3
         batch { global_batch_size: 8 } parallel { failures_max: 5 } }
  workers: "workers/w1" workers: "workers/w2"
  create_time { seconds: 1700000000 } start_time { seconds: 1700000010 }
  failure_count: 1
  numeric_class: "cpu/avx512/onednn-2.6.3"
  progress { step_count: 120 max_steps: 300 loss: 2.31214 token_count: 491520
             tokens_per_second: 12345 remaining { seconds: 80 } }
)";

TEST_F(LockstepTest, GetShowsAJob) {
  const v1::Job job = AddJob(kRunning);

  EXPECT_EQ(Run({"get", "a1"}).out,
            "name          jobs/a1\n"
            "display name  King James\n"
            "state         RUNNING\n"
            "progress      step 120/300, loss 2.3121, 12.3k tokens/s, 1m20s "
            "left\n"
            "tokens        492k\n"
            "workers       w1 w2\n"
            "generation    2\n"
            "failures      1 of at most 5 in a row\n"
            "numeric class cpu/avx512/onednn-2.6.3\n"
            "created       2023-11-14 22:13:20 UTC\n"
            "started       2023-11-14 22:13:30 UTC\n"
            "output        /out\n");
  EXPECT_EQ(Run({"get", "a1", "--yaml"}).out,
            "display_name: \"King James\"\n"
            "priority: 3\n"
            "batch:\n"
            "  global_batch_size: 8\n"
            "parallel:\n"
            "  failures_max: 5\n"
            "output_directory: \"/out\"\n");

  v1::Job read;
  const Result json = Run({"get", "a1", "--json"});
  ASSERT_TRUE(
      google::protobuf::util::JsonStringToMessage(json.out, &read).ok());
  EXPECT_EQ(read.SerializeAsString(), job.SerializeAsString());
  EXPECT_THAT(json.out, HasSubstr("\"step_count\": \"120\""));
  EXPECT_THAT(json.out, HasSubstr("\"held_out_step_count\": \"0\""));
  EXPECT_THAT(json.out, Not(HasSubstr("held_out_loss\"")));
}

TEST_F(LockstepTest, AnAnswerWithoutAJsonFormIsAnErrorAndNoCrash) {
  AddJob("name: 'jobs/a' create_time { seconds: 999999999999999 }");
  const Result result = Run({"get", "a", "--json"});
  EXPECT_EQ(result.code, kExitFailure);
  EXPECT_THAT(result.err, HasSubstr("the answer has no JSON form"));
}

TEST_F(LockstepTest, ListTakesAllPagesUpToTheLimit) {
  for (int i = 1; i <= 7; ++i) {
    AddJob(absl::StrCat("name: 'jobs/", i,
                        "' state: ", i % 2 == 0 ? "QUEUED" : "RUNNING",
                        " create_time { seconds: 1700000000 }"));
  }
  coordinator_->SetPageMax(2);

  const auto names = [](const Result& result) {
    std::string all;
    for (absl::string_view line : absl::StrSplit(result.out, '\n')) {
      if (absl::StartsWith(line, "jobs/")) all += line[5];
    }
    return all;
  };
  EXPECT_EQ(names(Run({"list"})), "7654321");
  EXPECT_EQ(names(Run({"list", "--limit", "5"})), "76543");
  EXPECT_EQ(names(Run({"list", "--limit", "1"})), "7");
  EXPECT_EQ(names(Run({"list", "--state", "queued"})), "642");
  EXPECT_EQ(names(Run({"list", "--state", "QUEUED", "--state", "RUNNING"})),
            "7654321");
  EXPECT_EQ(names(Run({"list", "--state", "FAILED,QUEUED"})), "642");

  v1::ListJobsResponse read;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(
                  Run({"list", "--json"}).out, &read)
                  .ok());
  EXPECT_EQ(read.jobs_size(), 7);
}

TEST_F(LockstepTest, ListIsATable) {
  AddJob(kRunning);
  AddJob(
      "name: 'jobs/b' state: QUEUED state_reason: 'waits for 1 worker' spec "
      "{ display_name: 'x' }");
  EXPECT_EQ(Run({"list"}).out,
            "JOB      STATE       STEP    LOSS  TOKENS/S  WORKERS  CREATED "
            "(UTC)      "
            "  DISPLAY NAME  REASON\n"
            "jobs/b   QUEUED         -       -         -        0  -           "
            "       "
            "  x             waits for 1 worker\n"
            "jobs/a1  RUNNING  120/300  2.3121     12.3k        2  2023-11-14 "
            "22:13:20  King James\n");
}

TEST_F(LockstepTest, CancelSaysWhatBecameOfTheJob) {
  AddJob("name: 'jobs/a' state: RUNNING");
  AddJob("name: 'jobs/b' state: COMPLETED");

  const Result result = Run({"cancel", "a", "--reason", "wrong data"});
  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_EQ(result.out, "jobs/a CANCELLED\n");
  ASSERT_EQ(coordinator_->cancellations().size(), 1u);
  EXPECT_EQ(coordinator_->cancellations()[0].reason(), "wrong data");

  const Result late = Run({"cancel", "b"});
  EXPECT_EQ(late.code, kExitUsage);
  EXPECT_EQ(late.err, "lockstep: error: jobs/b has ended before\n");
}

// --- workers, stragglers, metrics

TEST_F(LockstepTest, WorkersAreListed) {
  coordinator_->SetWorkers({
      FromText<v1::Worker>(R"(name: "workers/w1" state: BUSY phase: TRAINING
        job: "jobs/a" rank: 1 trainer_death_count: 2 collectives: TCP
        last_seen_time { seconds: 1700000000 }
        device { kind: "cpu" numeric_class: "cpu/avx2" thread_count: 4
                 memory_bytes: 25769803776 host: "h1" })"),
      FromText<v1::Worker>("name: 'workers/w2' state: LOST device { kind: "
                           "'cpu' } state_reason: 'silent'"),
  });
  coordinator_->SetPageMax(1);

  EXPECT_EQ(Run({"workers"}).out,
            "WORKER  STATE  PHASE     JOB     RANK  COLLECTIVES  DEVICE  "
            "THREADS    MEMORY  "
            "NUMERIC CLASS  HOST  DEATHS  LAST SEEN (UTC)      REASON\n"
            "w1      BUSY   TRAINING  jobs/a     1  TCP          cpu     "
            "      4  24.0 GiB  "
            "cpu/avx2       h1         2  2023-11-14 22:13:20\n"
            "w2      LOST   -         -          -  -            cpu     "
            "      -       0 B  "
            "                          0  -                    silent\n");
  v1::ListWorkersResponse read;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(
                  Run({"workers", "--json"}).out, &read)
                  .ok());
  EXPECT_EQ(read.workers_size(), 2);
}

TEST_F(LockstepTest, StragglersAreNamed) {
  AddJob("name: 'jobs/a' state: RUNNING");
  coordinator_->SetStragglers(FromText<v1::GetStragglersResponse>(R"(
    generation: 2 first_step: 10 last_step: 59
    ranks { worker: "workers/w1" compute_per_micro_batch { nanos: 10500000 }
            median_of_others { nanos: 21000000 } score: 0.5 step_count: 50
            phase: TRAINING }
    ranks { rank: 1 worker: "workers/w2" score: 2 straggler: true
            compute_per_micro_batch { nanos: 21000000 } step_count: 50
            median_of_others { nanos: 10500000 } slow_phase: "backward"
            phase: TRAINING }
  )"));

  const Result result =
      Run({"stragglers", "a", "--window", "60", "--threshold", "1.5"});

  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_EQ(result.out,
            "RANK  WORKER  MS/MICRO-BATCH  OTHERS  SCORE  STEPS  PHASE     "
            "VERDICT\n"
            "   0  w1               10.50   21.00   0.50     50  TRAINING  ok\n"
            "   1  w2               21.00   10.50   2.00     50  TRAINING  "
            "STRAGGLER, in backward\n"
            "Steps 10 to 59 of generation 2.\n");
  ASSERT_EQ(coordinator_->straggler_requests().size(), 1u);
  EXPECT_EQ(coordinator_->straggler_requests()[0].window_steps(), 60);
  EXPECT_EQ(coordinator_->straggler_requests()[0].score_threshold(), 1.5);
  EXPECT_THAT(Run({"stragglers", "a", "--json"}).out,
              HasSubstr("\"slow_phase\": \"backward\""));
}

class MetricsTest : public LockstepTest {
 protected:
  MetricsTest() {
    AddJob("name: 'jobs/a' state: COMPLETED progress { step_count: 30 }");
    std::vector<v1::StepMetrics> rows;
    for (int step = 0; step < 30; ++step) {
      for (int rank = 0; rank < 2; ++rank) {
        v1::StepMetrics row;
        row.set_job("jobs/a");
        row.set_generation(1);
        row.set_step(step);
        row.set_rank(rank);
        row.set_worker(absl::StrCat("workers/w", rank));
        row.set_loss(1 + step);
        rows.push_back(row);
      }
    }
    coordinator_->SetStepMetrics(rows);
    coordinator_->SetPageMax(7);
  }

  // "step:rank" of each row.
  static std::string Rows(const Result& result) {
    std::string rows;
    for (absl::string_view line : absl::StrSplit(result.out, '\n')) {
      v1::StepMetrics row;
      if (!google::protobuf::util::JsonStringToMessage(std::string(line), &row)
               .ok()) {
        continue;
      }
      absl::StrAppend(&rows, rows.empty() ? "" : " ", row.step(), ":",
                      row.rank());
    }
    return rows;
  }
};

TEST_F(MetricsTest, ATableShowsTheLastSteps) {
  const Result result = Run({"metrics", "a"});
  EXPECT_EQ(result.code, kExitOk);
  EXPECT_EQ(result.err, "lockstep: from step 10 on; --steps : shows all\n");
  EXPECT_THAT(result.out,
              StartsWith("   STEP  RANK  WORKER    GEN     LOSS  "));
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1 + 40);
  EXPECT_THAT(result.out, HasSubstr("\n     10     0  w0          1  11.0000"));
  const Result all = Run({"metrics", "a", "--steps", ":"});
  EXPECT_EQ(std::count(all.out.begin(), all.out.end(), '\n'), 1 + 60);
  EXPECT_EQ(all.err, "");
}

TEST_F(MetricsTest, JsonAndCsvHaveAllRowsOfTheRange) {
  const Result csv = Run({"metrics", "a", "--csv"});
  EXPECT_EQ(std::count(csv.out.begin(), csv.out.end(), '\n'), 1 + 60);
  EXPECT_THAT(csv.out, StartsWith("job,step,rank,worker,"));
  EXPECT_EQ(Rows(Run({"metrics", "a", "--json", "--steps", "3:5"})),
            "3:0 3:1 4:0 4:1 5:0 5:1");
  EXPECT_EQ(Rows(Run({"metrics", "a", "--json", "--steps", "28:"})),
            "28:0 28:1 29:0 29:1");
  EXPECT_EQ(Rows(Run({"metrics", "a", "--json", "--steps", "0"})), "0:0 0:1");
}

TEST_F(MetricsTest, FollowingGoesOnAfterABreakWithoutRepeating) {
  coordinator_->BreakNextStreamAfter(5);

  const Result result =
      Run({"metrics", "a", "--json", "--follow", "--steps", "26:"});

  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_EQ(Rows(result), "26:0 26:1 27:0 27:1 28:0 28:1 29:0 29:1");
  EXPECT_EQ(coordinator_->metric_watches().size(), 2u);
  EXPECT_THAT(result.err, HasSubstr("lockstep: 1 rows were left out"));
}

TEST_F(MetricsTest, FollowingShowsAStepThatWasTakenAgain) {
  std::vector<v1::StepMetrics> rows(3);
  for (int i = 0; i < 3; ++i) {
    rows[static_cast<size_t>(i)].set_step(i == 2 ? 0 : i);
    rows[static_cast<size_t>(i)].set_generation(i == 2 ? 2 : 1);
  }
  coordinator_->SetStepMetrics(rows);
  EXPECT_EQ(Rows(Run({"metrics", "a", "--json", "--follow"})), "0:0 1:0 0:0");
}

}  // namespace
}  // namespace lockstep::cli
