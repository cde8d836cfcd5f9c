#include "common/job_plan.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

v1::JobSpec Spec() {
  v1::JobSpec spec;
  v1::Gpt2Config& model = *spec.mutable_model()->mutable_gpt2();
  model.set_vocab_size(1000);
  model.set_n_embd(256);
  model.set_n_layer(8);
  model.set_n_head(4);
  spec.mutable_data()->add_files("/data");
  spec.mutable_data()->set_format(v1::DataSpec::BYTES);
  spec.mutable_data()->set_sequence_length(128);
  spec.mutable_batch()->set_global_batch_size(64);
  spec.mutable_batch()->set_micro_batch_size(8);
  spec.mutable_schedule()->set_max_steps(100);
  spec.mutable_schedule()->set_peak_learning_rate(1e-3);
  spec.mutable_parallel()->set_min_workers(2);
  spec.mutable_parallel()->set_max_workers(4);
  spec.set_output_directory("/out");
  return ResolveJobSpec(spec).value();
}

v1::PlannedWorker WorkerOf(int64_t memory_bytes) {
  v1::PlannedWorker worker;
  worker.set_memory_bytes(memory_bytes);
  worker.set_thread_count(2);
  return worker;
}

v1::JobPlan Plan(const v1::JobSpec& spec, int64_t memory_bytes) {
  return PlanJob(spec, *ModelOf(spec), WorkerOf(memory_bytes));
}

// Of the row with the stage on so many workers.
int64_t PeakOf(const v1::JobSpec& spec, int stage, int world) {
  const v1::JobPlan plan = Plan(spec, 0);
  for (const v1::JobPlanRow& row : plan.rows()) {
    if (row.zero_stage() == stage && row.worker_count() == world) {
      return row.memory().peak_bytes();
    }
  }
  return -1;
}

TEST(JobPlanTest, HasARowForEachStageAndNumberOfWorkers) {
  const v1::JobPlan plan = Plan(Spec(), 0);

  std::vector<std::string> rows;
  for (const v1::JobPlanRow& row : plan.rows()) {
    rows.push_back(absl::StrCat(row.zero_stage(), "x", row.worker_count()));
    const v1::PlannedMemory& m = row.memory();
    EXPECT_EQ(m.device_bytes(),
              m.parameters_bytes() + m.rounded_parameters_bytes() +
                  m.gathered_units_bytes() + m.accumulators_bytes() +
                  m.staging_units_bytes() + m.optimizer_bytes() +
                  m.activations_bytes() + m.gradients_bytes() +
                  m.logits_bytes() + m.workspace_bytes() + m.commit_bytes());
    EXPECT_FALSE(row.has_time());
  }
  EXPECT_THAT(rows, ElementsAre("0x2", "0x3", "0x4", "1x2", "1x3", "1x4", "2x2",
                                "2x3", "2x4", "3x2", "3x3", "3x4"));
  EXPECT_TRUE(plan.fits());
  EXPECT_EQ(plan.zero_stage(), 0);
  EXPECT_EQ(plan.tokens_per_step(), 64 * 128);
  EXPECT_EQ(plan.max_steps(), 100);
}

TEST(JobPlanTest, OfManyWorkersAFewHaveRows) {
  v1::JobSpec spec = Spec();
  spec.mutable_batch()->set_micro_batch_size(1);
  spec.mutable_parallel()->set_max_workers(4096);
  const v1::JobPlan plan = Plan(spec, 0);

  std::vector<int> worlds;
  for (const v1::JobPlanRow& row : plan.rows()) {
    if (row.zero_stage() == 0) worlds.push_back(row.worker_count());
  }
  EXPECT_THAT(worlds, ElementsAre(2, 4, 8, 16, 32, 64));
}

TEST(JobPlanTest, TakesTheLowestStageThatFitsAndNoneWithAByteLess) {
  v1::JobSpec spec = Spec();
  int64_t last = PeakOf(spec, 0, 2);
  for (int stage = 0; stage <= 3; ++stage) {
    const int64_t peak = PeakOf(spec, stage, 2);
    EXPECT_LE(peak, last) << "the next test line needs it";
    last = peak;
    EXPECT_EQ(Plan(spec, peak).zero_stage(), stage);
  }
  EXPECT_FALSE(Plan(spec, last - 1).fits());
  EXPECT_EQ(Plan(spec, last - 1).zero_stage(), -1);

  spec.mutable_parallel()->set_zero_stage(1);
  EXPECT_EQ(Plan(spec, PeakOf(spec, 1, 2)).zero_stage(), 1);
  EXPECT_FALSE(Plan(spec, PeakOf(spec, 1, 2) - 1).fits());
}

TEST(JobPlanTest, EveryAdviceMakesItFit) {
  v1::JobSpec spec = Spec();
  const int64_t memory = PeakOf(spec, 3, 2) - (1 << 20);
  const v1::JobPlan plan = Plan(spec, memory);

  ASSERT_FALSE(plan.fits());
  EXPECT_THAT(plan.advice(),
              ElementsAre(StartsWith("parallel.recompute: BLOCK"),
                          StartsWith("batch.micro_batch_size: 4"),
                          StartsWith("parallel.min_workers: 3")));
  v1::JobSpec changed = spec;
  changed.mutable_parallel()->set_recompute(v1::ParallelSpec::BLOCK);
  EXPECT_TRUE(Plan(changed, memory).fits());
  changed = spec;
  changed.mutable_batch()->set_micro_batch_size(4);
  EXPECT_TRUE(Plan(changed, memory).fits());
  changed = spec;
  changed.mutable_parallel()->set_min_workers(3);
  EXPECT_TRUE(Plan(changed, memory).fits());
}

TEST(JobPlanTest, AStageThatIsAskedForMayBeTheFault) {
  v1::JobSpec spec = Spec();
  spec.mutable_parallel()->set_zero_stage(0);
  const v1::JobPlan plan = Plan(spec, PeakOf(spec, 2, 2));

  EXPECT_FALSE(plan.fits());
  EXPECT_THAT(plan.advice(0), StartsWith("parallel.zero_stage: 2"));
}

TEST(JobPlanTest, AUnitThatFitsNoWorkerNeedsAnotherParallelism) {
  const v1::JobPlan plan = Plan(Spec(), kProcessBytes + (1 << 20));

  EXPECT_THAT(plan.advice(),
              ElementsAre(HasSubstr("tensor or pipeline parallelism")));
}

// The number after `field` in a line of advice; none if it is not there.
std::optional<int> NumberAfter(const std::string& line,
                               const std::string& field) {
  const size_t at = line.find(field + ": ");
  if (at == std::string::npos) return std::nullopt;
  return std::atoi(line.c_str() + at + field.size() + 2);
}

v1::JobSpec Followed(v1::JobSpec spec, const std::string& advice) {
  v1::ParallelSpec& parallel = *spec.mutable_parallel();
  v1::BatchSpec& batch = *spec.mutable_batch();
  if (advice.find("parallel.zero_stage left out") != std::string::npos) {
    parallel.clear_zero_stage();
  }
  if (const auto stage = NumberAfter(advice, "parallel.zero_stage")) {
    parallel.set_zero_stage(*stage);
  }
  if (advice.find("parallel.recompute: BLOCK") != std::string::npos) {
    parallel.set_recompute(v1::ParallelSpec::BLOCK);
  }
  if (const auto size = NumberAfter(advice, "batch.micro_batch_size")) {
    batch.set_micro_batch_size(*size);
  }
  if (const auto size = NumberAfter(advice, "batch.global_batch_size")) {
    batch.set_global_batch_size(*size);
  }
  if (const auto count = NumberAfter(advice, "parallel.min_workers")) {
    parallel.set_min_workers(*count);
    parallel.set_max_workers(std::max(*count, parallel.max_workers()));
  }
  return spec;
}

TEST(JobPlanTest, WhoFollowsAdviceFits) {
  int alone = 0, together = 0, hopeless = 0;
  for (const int global_batch : {4, 8, 64}) {
    for (const int stage : {-1, 0, 2}) {
      for (int64_t mib = 46; mib < 200; mib += 3) {
        v1::JobSpec spec = Spec();
        spec.mutable_batch()->set_micro_batch_size(4);
        spec.mutable_batch()->set_global_batch_size(global_batch);
        spec.mutable_parallel()->set_min_workers(1);
        spec.mutable_parallel()->set_max_workers(1);
        if (stage >= 0) spec.mutable_parallel()->set_zero_stage(stage);
        const int64_t memory = mib << 20;
        const v1::JobPlan plan = Plan(spec, memory);
        for (const std::string& advice : plan.advice()) {
          SCOPED_TRACE(
              absl::StrCat(global_batch, " ", stage, " ", mib, ": ", advice));
          if (advice.find("take workers with") != std::string::npos) {
            ++hopeless;
            continue;
          }
          advice.find("together") != std::string::npos ? ++together : ++alone;
          const v1::JobSpec followed = Followed(spec, advice);
          EXPECT_TRUE(Plan(followed, memory).fits());
          // What says so keeps the bits.
          if (advice.find("not the same") == std::string::npos &&
              advice.find(": the same bits") != std::string::npos) {
            EXPECT_EQ(WhatDecidesBits(followed).SerializeAsString(),
                      WhatDecidesBits(spec).SerializeAsString());
          }
          EXPECT_TRUE(ResolveJobSpec(followed).ok());
        }
      }
    }
  }
  EXPECT_GT(alone, 20);
  EXPECT_GT(together, 10);
  EXPECT_GT(hopeless, 0);
}

TEST(JobPlanTest, WhatIsNeededIsNeverSaidToBeLess) {
  const v1::JobPlan plan = Plan(Spec(), kProcessBytes / 2);
  ASSERT_EQ(plan.advice_size(), 1);
  EXPECT_THAT(plan.advice(0), HasSubstr("the process of a worker takes"));
  double mib = 0;
  const size_t at = plan.advice(0).find("take workers with ");
  ASSERT_NE(at, std::string::npos);
  ASSERT_EQ(std::sscanf(plan.advice(0).c_str() + at,
                        "take workers with %lf MiB", &mib),
            1);
  v1::JobSpec spec = Followed(Spec(), "batch.micro_batch_size: 1");
  spec.mutable_parallel()->set_recompute(v1::ParallelSpec::BLOCK);
  spec.mutable_batch()->set_global_batch_size(4096);
  spec.mutable_parallel()->set_min_workers(4096);
  spec.mutable_parallel()->set_max_workers(4096);
  EXPECT_TRUE(Plan(spec, static_cast<int64_t>(mib * (1 << 20))).fits());
}

TEST(JobPlanTest, TheLargestThatASpecAllowsIsPlannedToo) {
  v1::JobSpec spec = Spec();
  v1::LlamaConfig& model = *spec.mutable_model()->mutable_llama();
  model.set_vocab_size(1'000'000);
  model.set_hidden_size(65536);
  model.set_num_hidden_layers(1000);
  model.set_num_attention_heads(1024);
  model.set_head_dim(4096);
  model.set_intermediate_size(1 << 20);
  spec.mutable_data()->set_sequence_length(1 << 20);
  spec.mutable_data()->set_stride(1 << 20);
  spec.mutable_batch()->set_global_batch_size(1 << 20);
  spec.mutable_batch()->set_micro_batch_size(1 << 16);
  spec.mutable_parallel()->set_max_workers(16);
  spec.mutable_parallel()->set_bucket_bytes(1024);
  const v1::JobPlan plan = Plan(ResolveJobSpec(spec).value(), 1 << 30);

  EXPECT_FALSE(plan.fits());
  for (const v1::JobPlanRow& row : plan.rows()) {
    EXPECT_GT(row.memory().device_bytes(), int64_t{1} << 50);
    EXPECT_GT(row.memory().peak_bytes(), row.memory().device_bytes());
    EXPECT_GT(row.traffic().reduction_bytes(), int64_t{1} << 50);
  }
}

TEST(JobPlanTest, TimesComeFromRates) {
  v1::JobSpec spec = Spec();
  v1::PlannedWorker worker = WorkerOf(0);
  worker.set_flops_per_second(1e9);
  worker.set_memory_bytes_per_second(1e12);
  worker.set_network_bytes_per_second(1e12);
  const v1::JobPlan slow = PlanJob(spec, *ModelOf(spec), worker);

  // Two workers: half of the step each.
  const v1::PlannedTime& time = slow.rows(0).time();
  EXPECT_EQ(time.bound(), v1::PlannedTime::MATMUL);
  EXPECT_NEAR(time.matmul_seconds(), slow.flops_per_step() / 2 / 1e9, 1e-6);
  EXPECT_GT(time.step_seconds(), time.matmul_seconds());
  EXPECT_NEAR(time.job_seconds(), 100 * time.step_seconds(), 1e-6);

  worker.set_network_bytes_per_second(1e3);
  EXPECT_EQ(PlanJob(spec, *ModelOf(spec), worker).rows(0).time().bound(),
            v1::PlannedTime::COLLECTIVE);
}

TEST(JobPlanTest, NeedsAreThePlansPeaks) {
  const v1::JobSpec spec = Spec();
  for (const int threads : {1, 2, 64}) {
    v1::PlannedWorker worker;
    worker.set_thread_count(threads);
    const v1::JobPlan plan = PlanJob(spec, *ModelOf(spec), worker);
    const MemoryNeeds needs = *MemoryNeedsOf(spec);

    for (const v1::JobPlanRow& row : plan.rows()) {
      if (row.worker_count() != spec.parallel().min_workers()) continue;
      EXPECT_EQ(needs.Of(row.zero_stage(), threads), row.memory().peak_bytes());
    }
  }
}

v1::Worker Connected(int64_t memory_bytes, int threads,
                     const std::string& numeric_class = "cpu/x") {
  v1::Worker worker;
  worker.set_state(v1::Worker::IDLE);
  worker.mutable_device()->set_memory_bytes(memory_bytes);
  worker.mutable_device()->set_thread_count(threads);
  worker.mutable_device()->set_numeric_class(numeric_class);
  return worker;
}

TEST(JobPlanTest, AWorkerIsAsLargeAsMinWorkersAre) {
  const v1::JobSpec spec = Spec();
  const auto memory = [&](const std::vector<v1::Worker>& workers) {
    return PlannedWorkerFor(spec, workers).memory_bytes();
  };
  EXPECT_EQ(memory({}), 0);
  EXPECT_EQ(memory({Connected(5, 1)}), 5);
  EXPECT_EQ(memory({Connected(5, 1), Connected(9, 1), Connected(7, 1)}), 7);
  EXPECT_EQ(memory({Connected(9, 1, "cpu/y"), Connected(5, 1), Connected(7, 1),
                    Connected(4, 1, "cpu/y")}),
            5);
  v1::Worker lost = Connected(9, 1);
  lost.set_state(v1::Worker::LOST);
  EXPECT_EQ(memory({lost, Connected(5, 1), Connected(7, 1)}), 5);
  EXPECT_EQ(PlannedWorkerFor(
                spec, {Connected(5, 64), Connected(9, 2), Connected(7, 3)})
                .thread_count(),
            3);
}

TEST(JobPlanTest, OnlyWorkersWithBfloat16CanRunItsJobs) {
  v1::JobSpec spec = Spec();
  spec.mutable_numerics()->set_precision(v1::NumericsSpec::BFLOAT16);
  v1::Worker able = Connected(5, 1);
  able.mutable_device()->set_has_bfloat16(true);
  EXPECT_EQ(PlannedWorkerFor(spec, {able, Connected(9, 1)}).memory_bytes(), 5);
}

// One that has measured its rates.
v1::Worker Measured(double rate, const std::string& host) {
  v1::Worker worker = Connected(5, 1);
  worker.mutable_device()->set_host(host);
  v1::DeviceRates& rates = *worker.mutable_device()->mutable_rates();
  rates.set_float32_flops_per_second(rate);
  rates.set_bfloat16_flops_per_second(2 * rate);
  rates.set_memory_bytes_per_second(3 * rate);
  rates.set_shared_memory_bytes_per_second(4 * rate);
  rates.set_network_bytes_per_second(5 * rate);
  return worker;
}

TEST(JobPlanTest, RatesAreThoseOfTheSlowest) {
  v1::JobSpec spec = Spec();
  const v1::PlannedWorker worker = PlannedWorkerFor(
      spec, {Measured(1e9, "a"), Measured(1e8, "a"), Measured(1e10, "a")});
  EXPECT_EQ(worker.flops_per_second(), 1e8);
  EXPECT_EQ(worker.memory_bytes_per_second(), 3e8);
  EXPECT_EQ(worker.network_bytes_per_second(), 4e8);

  // One that has not measured: nothing is known.
  EXPECT_EQ(PlannedWorkerFor(spec, {Measured(1e9, "a"), Connected(5, 1)})
                .flops_per_second(),
            0);

  spec.mutable_numerics()->set_precision(v1::NumericsSpec::BFLOAT16);
  v1::Worker able = Measured(1e9, "a");
  able.mutable_device()->set_has_bfloat16(true);
  EXPECT_EQ(PlannedWorkerFor(spec, {able}).flops_per_second(), 2e9);
}

TEST(JobPlanTest, WorkersOfOneHostShareMemory) {
  const v1::JobSpec spec = Spec();
  EXPECT_EQ(PlannedWorkerFor(spec, {Measured(1e9, "a"), Measured(1e9, "b")})
                .network_bytes_per_second(),
            5e9);
  v1::Worker tcp = Measured(1e9, "a");
  tcp.mutable_device()->mutable_rates()->clear_shared_memory_bytes_per_second();
  EXPECT_EQ(PlannedWorkerFor(spec, {Measured(1e9, "a"), tcp})
                .network_bytes_per_second(),
            5e9);
}

TEST(JobPlanTest, TextHasTheTableAndWhatToDo) {
  const std::string fits = PlanText(Plan(Spec(), int64_t{1} << 40));
  EXPECT_THAT(fits, HasSubstr("ZERO WORKERS"));
  EXPECT_THAT(fits, HasSubstr("ZeRO stage 0, the lowest that fits"));

  const std::string none = PlanText(Plan(Spec(), int64_t{100} << 20));
  EXPECT_THAT(none, HasSubstr("It does not fit 2 such workers"));
}

}  // namespace
}  // namespace lockstep
