#include "coordinator/store/store.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "coordinator/store/schema.h"
#include "coordinator/store/sqlite.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A folder of its own, gone with the test.
class StoreTest : public ::testing::Test {
 protected:
  StoreTest() {
    std::string name =
        absl::StrCat(std::getenv("TEST_TMPDIR"), "/store.XXXXXX");
    base_ = mkdtemp(name.data());
    folder_ = base_ + "/store";
  }
  ~StoreTest() override { std::filesystem::remove_all(base_); }

  std::unique_ptr<Store> Open(int64_t step_row_max = 1000) {
    auto store = OpenStore({.folder = folder_, .step_row_max = step_row_max});
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }
  std::string database() const { return folder_ + "/coordinator.db"; }

  std::string base_;
  std::string folder_;
};

JobRecord MakeJob(const std::string& id, int64_t order) {
  JobRecord job;
  job.id = {id};
  job.order = order;
  job.request_id = "request-" + id;
  job.spec_digest = "digest-" + id;
  job.spec = std::make_shared<const std::string>(std::string("sp\0ec", 5) + id);
  job.needs.output_directory = "/out/" + id;
  job.create_time = absl::FromUnixNanos(1'700'000'000'123'456'789);
  return job;
}

StepRow MakeRow(const std::string& job, int64_t generation, int64_t step,
                int rank) {
  return {.key = {{job}, generation},
          .step = step,
          .rank = rank,
          .metrics = absl::StrCat(generation, "/", step, "/", rank)};
}

std::vector<std::string> Metrics(
    const absl::StatusOr<std::vector<StepRow>>& rows) {
  std::vector<std::string> out;
  if (!rows.ok()) return {std::string(rows.status().message())};
  for (const StepRow& row : *rows) {
    EXPECT_EQ(row.metrics,
              absl::StrCat(row.key.generation, "/", row.step, "/", row.rank));
    out.push_back(row.metrics);
  }
  return out;
}

// Every field of a record, so that a new one cannot be forgotten: it does not
// compile any more.
auto Fields(const JobRecord& record) {
  const auto& [id, order, request_id, digest, spec, needs, state, reason,
               numeric_class, zero_stage, generation, members, failure_count,
               ledger, committed, best, max_steps, create, start, end] = record;
  const auto& [priority, min_workers, max_workers, micro_batches, failures_max,
               output, bfloat16, zero_stage_asked, memory] = needs;
  return std::tuple(id, order, request_id, digest, *spec, priority, min_workers,
                    max_workers, micro_batches, failures_max, output, bfloat16,
                    state, reason, numeric_class, zero_stage, generation,
                    members, failure_count, ledger, committed, best, max_steps,
                    create, start, end);
}

TEST_F(StoreTest, AJobComesBackWithEveryField) {
  JobRecord job = MakeJob("j-1", 7);
  job.needs = {.priority = -3,
               .min_workers = 2,
               .max_workers = 5,
               .micro_batches = 9,
               .failures_max = 4,
               .output_directory = "/out put",
               .bfloat16 = true};
  Open()->Apply({PersistJob{job}}, 1).value();
  // What changes later, changes; the rest was there from the first.
  job.state = JobState::kFailed;
  job.reason = "because\nof ü";
  job.numeric_class = "cpu/x";
  job.zero_stage = 2;
  job.generation = 3;
  job.members = {{"w-0"}, {"w.1"}};
  job.failure_count = 2;
  job.ledger = {{1, 1, 0, 7, {{"w-0"}}, {{0, 9}}},
                {3, 2, 7, 11, {{"w-0"}, {"w.1"}}, {{0, 5}, {5, 4}}}};
  job.committed_step_count = 11;
  job.best_step_count = 12;
  job.max_steps = 13;
  job.start_time = absl::FromUnixNanos(1);
  job.end_time = absl::FromUnixNanos(-2);
  Open()
      ->Apply({PersistJob{job}, StoreProgress{job.id, "half\0way"}}, 2)
      .value();

  const auto content = Open()->Load();

  ASSERT_TRUE(content.ok()) << content.status();
  ASSERT_EQ(content->jobs.size(), 1u);
  EXPECT_EQ(Fields(content->jobs[0].record), Fields(job));
  EXPECT_EQ(content->jobs[0].progress, "half\0way");
}

TEST_F(StoreTest, EachStartHasALargerIncarnation) {
  EXPECT_EQ(Open()->Load()->incarnation.value, 1);
  EXPECT_EQ(Open()->Load()->incarnation.value, 2);
  EXPECT_EQ(Open()->Load()->incarnation.value, 3);
}

TEST_F(StoreTest, AllChangesOfABatchAreMadeOrNone) {
  auto store = Open();
  store->Load().value();
  store->Apply({PersistJob{MakeJob("j-1", 1)}}, 1).value();

  // The number of j-2 belongs to j-1's name: the second change cannot be made.
  JobRecord clash = MakeJob("j-1", 3);
  const auto result =
      store->Apply({PersistJob{MakeJob("j-2", 2)}, PersistJob{clash}}, 2);

  EXPECT_FALSE(result.ok());
  store.reset();
  const auto content = Open()->Load();
  ASSERT_EQ(content->jobs.size(), 1u);
  EXPECT_EQ(content->jobs[0].record.id.value, "j-1");
}

TEST_F(StoreTest, OfAStepTakenAgainTheLatestGenerationIsListed) {
  auto store = Open();
  store
      ->Apply({PersistJob{MakeJob("j", 1)}, MakeRow("j", 1, 0, 0),
               MakeRow("j", 1, 0, 1), MakeRow("j", 1, 1, 1),
               MakeRow("j", 1, 1, 0), MakeRow("j", 1, 2, 0)},
              1)
      .value();
  store->Apply({MakeRow("j", 2, 0, 0), MakeRow("j", 2, 1, 0)}, 2).value();

  EXPECT_THAT(Metrics(store->ListSteps({.job = {"j"}})),
              ElementsAre("2/0/0", "2/1/0", "1/2/0"));
  EXPECT_THAT(Metrics(store->ListSteps({.job = {"other"}})), IsEmpty());
}

TEST_F(StoreTest, ListsByRangePageAndCommit) {
  auto store = Open();
  store->Apply({PersistJob{MakeJob("j", 1)}}, 1).value();
  for (int step = 0; step < 4; ++step) {
    store->Apply({MakeRow("j", 1, step, 1), MakeRow("j", 1, step, 0)}, step + 2)
        .value();
  }

  EXPECT_THAT(Metrics(store->ListSteps(
                  {.job = {"j"}, .first_step = 1, .last_step = 2})),
              ElementsAre("1/1/0", "1/1/1", "1/2/0", "1/2/1"));
  EXPECT_THAT(Metrics(store->ListSteps({.job = {"j"}, .row_count_max = 3})),
              ElementsAre("1/0/0", "1/0/1", "1/1/0"));
  EXPECT_THAT(
      Metrics(store->ListSteps(
          {.job = {"j"}, .after = StepPlace{1, 0}, .row_count_max = 3})),
      ElementsAre("1/1/1", "1/2/0", "1/2/1"));
  EXPECT_THAT(Metrics(store->ListSteps(
                  {.job = {"j"}, .first_step = 3, .after = StepPlace{1, 0}})),
              ElementsAre("1/3/0", "1/3/1"));
  EXPECT_THAT(Metrics(store->ListSteps({.job = {"j"}, .last_commit = 3})),
              ElementsAre("1/0/0", "1/0/1", "1/1/0", "1/1/1"));
}

TEST_F(StoreTest, ARowReportedTwiceIsKeptOnceAndTold) {
  auto store = Open();
  store->Apply({PersistJob{MakeJob("j", 1)}}, 1).value();
  const StepRow row = MakeRow("j", 1, 0, 0);

  EXPECT_THAT(store->Apply({row, row}, 2).value(), ElementsAre(true, false));
  EXPECT_THAT(store->Apply({row}, 3).value(), ElementsAre(false));
  EXPECT_THAT(store->Apply({MakeRow("gone", 1, 0, 0)}, 4).value(),
              ElementsAre(false));
  EXPECT_THAT(Metrics(store->ListSteps({.job = {"j"}})), ElementsAre("1/0/0"));
}

TEST_F(StoreTest, LastStepsAreOfOneGenerationAndWhole) {
  auto store = Open();
  store->Apply({PersistJob{MakeJob("j", 1)}}, 1).value();
  for (int step = 0; step < 5; ++step) {
    store
        ->Apply({MakeRow("j", 1, step + 10, 0), MakeRow("j", 2, step, 0),
                 MakeRow("j", 2, step, 1)},
                step + 2)
        .value();
  }

  EXPECT_THAT(Metrics(store->LastSteps({{"j"}, 2}, 2, 100)),
              ElementsAre("2/3/0", "2/3/1", "2/4/0", "2/4/1"));
  EXPECT_THAT(Metrics(store->LastSteps({{"j"}, 1}, 1, 100)),
              ElementsAre("1/14/0"));
  // Three rows would halve step 3.
  EXPECT_THAT(Metrics(store->LastSteps({{"j"}, 2}, 5, 3)),
              ElementsAre("2/4/0", "2/4/1"));
  EXPECT_THAT(Metrics(store->LastSteps({{"j"}, 3}, 5, 3)), IsEmpty());
}

TEST_F(StoreTest, TheOldestRowsGoFirstByGeneration) {
  auto store = Open(/*step_row_max=*/16);
  store
      ->Apply({PersistJob{MakeJob("j", 1)}, PersistJob{MakeJob("k", 2)},
               MakeRow("k", 1, 0, 0)},
              1)
      .value();
  // A first generation, far ahead, then a second one from the beginning.
  for (int step = 100; step < 114; ++step) {
    store->Apply({MakeRow("j", 1, step, 0)}, step).value();
  }
  for (int step = 0; step < 8; ++step) {
    store->Apply({MakeRow("j", 2, step, 0)}, 200 + step).value();
  }

  const auto rows = store->ListSteps({.job = {"j"}});

  ASSERT_TRUE(rows.ok());
  EXPECT_LE(rows->size(), 16u);
  EXPECT_GE(rows->size(), 14u);
  // All of the second generation is there; of the first, the last steps.
  EXPECT_EQ((*rows)[7].metrics, "2/7/0");
  EXPECT_EQ(rows->back().metrics, "1/113/0");
  EXPECT_EQ((*rows)[8].step, 114 - (static_cast<int>(rows->size()) - 8));
  EXPECT_THAT(Metrics(store->ListSteps({.job = {"k"}})), ElementsAre("1/0/0"));
}

TEST_F(StoreTest, AnErasedJobLeavesNothing) {
  auto store = Open();
  store->Apply({PersistJob{MakeJob("j", 1)}, MakeRow("j", 1, 0, 0)}, 1).value();

  EXPECT_THAT(store->Apply({EraseJob{{"j"}}, EraseJob{{"j"}}}, 2).value(),
              ElementsAre(true, false));

  store.reset();
  store = Open();
  EXPECT_THAT(store->Load()->jobs, IsEmpty());
  store->Apply({PersistJob{MakeJob("j", 2)}}, 3).value();
  EXPECT_THAT(Metrics(store->ListSteps({.job = {"j"}})), IsEmpty());
}

TEST_F(StoreTest, ASecondProcessIsRefusedAndToldWhoHoldsTheStore) {
  auto store = Open();

  const auto second = OpenStore({.folder = folder_});

  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr(absl::StrCat("in use by process ", getpid())));
  store.reset();
  EXPECT_NE(Open(), nullptr);
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

TEST_F(StoreTest, WhatIsNoDatabaseIsRefusedAndLeftAlone) {
  mkdir(folder_.c_str(), 0700);
  for (const std::string& bytes :
       {std::string("precious text"), std::string(5000, 'x'), std::string()}) {
    WriteFile(database(), bytes);

    const auto store = OpenStore({.folder = folder_});

    EXPECT_EQ(store.status().code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(store.status().message()),
                HasSubstr("coordinator.db: byte 0: expected the header"));
    EXPECT_EQ(ReadFile(database()), bytes);
  }
}

TEST_F(StoreTest, AnotherProgramsDatabaseIsRefusedAndLeftAlone) {
  mkdir(folder_.c_str(), 0700);
  {
    auto other = SqliteDatabase::Open(
        database(), SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
    ASSERT_TRUE(other->Execute("CREATE TABLE jobs (x)").ok());
  }
  const std::string before = ReadFile(database());

  const auto store = OpenStore({.folder = folder_});

  EXPECT_EQ(store.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(store.status().message()),
              HasSubstr("a database of another program"));
  EXPECT_EQ(ReadFile(database()), before);
}

TEST_F(StoreTest, ANewerVersionIsRefusedAndLeftAlone) {
  Open()->Apply({PersistJob{MakeJob("j", 1)}}, 1).value();
  {
    auto newer = SqliteDatabase::Open(database(), SQLITE_OPEN_READWRITE);
    ASSERT_TRUE(
        newer
            ->Execute(absl::StrCat("PRAGMA user_version = ", kStoreVersion + 1))
            .ok());
  }
  const std::string before = ReadFile(database());

  const auto store = OpenStore({.folder = folder_});

  EXPECT_EQ(store.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(store.status().message()),
              HasSubstr(absl::StrCat("of version ", kStoreVersion + 1)));
  EXPECT_EQ(ReadFile(database()), before);
}

TEST_F(StoreTest, ADamagedTableOfJobsIsRefusedAndLeftAlone) {
  {
    auto store = Open();
    std::vector<StoreChange> changes;
    for (int i = 1; i <= 200; ++i) {
      changes.push_back(PersistJob{MakeJob(absl::StrCat("j-", i), i)});
    }
    store->Apply(changes, 1).value();
  }
  std::string bytes = ReadFile(database());
  ASSERT_GT(bytes.size(), 40'000u);
  // All pages but the first, which holds header and schema.
  for (size_t i = 4096; i < bytes.size(); ++i) bytes[i] ^= 0x5A;
  WriteFile(database(), bytes);

  const auto store = OpenStore({.folder = folder_});

  EXPECT_EQ(store.status().code(), absl::StatusCode::kDataLoss)
      << store.status();
  EXPECT_EQ(ReadFile(database()), bytes);
}

TEST_F(StoreTest, ALogWithoutItsDatabaseIsNotPlayedIntoANewOne) {
  mkdir(folder_.c_str(), 0700);
  WriteFile(database() + "-wal", "old");

  const auto store = OpenStore({.folder = folder_});

  EXPECT_EQ(store.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(std::filesystem::exists(database()));
}

TEST_F(StoreTest, AnUnfinishedCreationIsBegunAgain) {
  mkdir(folder_.c_str(), 0700);
  WriteFile(database() + ".new", "half a file");

  auto store = Open();

  ASSERT_NE(store, nullptr);
  EXPECT_EQ(store->Load()->incarnation.value, 1);
  EXPECT_FALSE(std::filesystem::exists(database() + ".new"));
}

TEST_F(StoreTest, FoldersAboveItAreMade) {
  EXPECT_TRUE(OpenStore({.folder = base_ + "/a/b/c"}).ok());

  const std::string before = std::filesystem::current_path();
  std::filesystem::current_path(base_);
  EXPECT_TRUE(OpenStore({.folder = "relative"}).ok());
  EXPECT_TRUE(OpenStore({.folder = "another/"}).ok());
  std::filesystem::current_path(before);
  // For this user's eyes alone, however it is written.
  for (const char* name : {"relative", "another", "a/b/c"}) {
    EXPECT_EQ(
        std::filesystem::status(absl::StrCat(base_, "/", name)).permissions(),
        std::filesystem::perms::owner_all)
        << name;
  }
}

TEST_F(StoreTest, AFolderThatCannotBeUsedIsNamed) {
  WriteFile(base_ + "/file", "");
  const auto below = OpenStore({.folder = base_ + "/file/a/b"});
  EXPECT_FALSE(below.ok());
  EXPECT_THAT(std::string(below.status().message()), HasSubstr("/file/a/b"));
  EXPECT_FALSE(OpenStore({.folder = base_ + "/file"}).ok());
  EXPECT_EQ(OpenStore({}).status().code(), absl::StatusCode::kInvalidArgument);
}

// A child fills the "disk", since the limit on file sizes holds for a process.
TEST_F(StoreTest, AFullDiskIsAnErrorAndTheStoreStaysAsItWas) {
  {
    auto store = Open();
    store->Load().value();
    store->Apply({PersistJob{MakeJob("j-1", 1)}}, 1).value();
  }
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    auto store = OpenStore({.folder = folder_});
    if (!store.ok()) _exit(10);
    if (!(*store)->Load().ok()) _exit(11);
    const rlimit limit = {256 << 10, 256 << 10};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(12);
    JobRecord big = MakeJob("j-2", 2);
    big.spec = std::make_shared<const std::string>(1 << 20, 'x');
    const auto result =
        (*store)->Apply({PersistJob{MakeJob("j-3", 3)}, PersistJob{big}}, 2);
    if (result.ok()) _exit(13);
    if (!absl::IsResourceExhausted(result.status()) &&
        !absl::IsUnavailable(result.status())) {
      _exit(14);
    }
    _exit(0);
  }
  int how = 0;
  ASSERT_EQ(waitpid(child, &how, 0), child);
  ASSERT_TRUE(WIFEXITED(how));
  ASSERT_EQ(WEXITSTATUS(how), 0);

  const auto content = Open()->Load();

  ASSERT_TRUE(content.ok());
  ASSERT_EQ(content->jobs.size(), 1u);
  EXPECT_EQ(content->jobs[0].record.id.value, "j-1");
  EXPECT_EQ(content->incarnation.value, 3);
}

TEST_F(StoreTest, ReadersGoOnWhileAWriterCommits) {
  auto store = Open(/*step_row_max=*/100'000);
  store->Apply({PersistJob{MakeJob("j", 1)}}, 1).value();
  std::atomic<bool> done = false;
  std::thread writer([&] {
    for (int step = 0; step < 100; ++step) {
      store
          ->Apply({MakeRow("j", 1, step, 0), MakeRow("j", 1, step, 1)},
                  step + 2)
          .value();
    }
    done = true;
  });

  size_t seen = 0;
  while (!done) {
    const auto rows = store->ListSteps({.job = {"j"}});
    ASSERT_TRUE(rows.ok()) << rows.status();
    // A commit shows whole, and nothing goes back.
    EXPECT_EQ(rows->size() % 2, 0u);
    EXPECT_GE(rows->size(), seen);
    seen = rows->size();
  }
  writer.join();
  EXPECT_EQ(store->ListSteps({.job = {"j"}})->size(), 200u);
}

}  // namespace
}  // namespace lockstep
