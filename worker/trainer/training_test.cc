#include "worker/trainer/training.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/memory_plan.h"
#include "common/sha256.h"
#include "common/spec.h"
#include "common/traffic_plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/comm/loopback_communicator.h"
#include "worker/data/test_files.h"
#include "worker/trainer/checkpointer.h"
#include "worker/trainer/failure.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

std::string Text(int byte_count) {
  std::string text;
  for (int i = 0; static_cast<int>(text.size()) < byte_count; ++i) {
    text += "verse " + std::to_string(i * 7919 % 1000) + " of the tale. ";
  }
  text.resize(byte_count);
  return text;
}

v1::JobSpec Spec(const TestFolder& folder) {
  v1::JobSpec spec;
  v1::Gpt2Config& model = *spec.mutable_model()->mutable_gpt2();
  model.set_vocab_size(256);
  model.set_n_embd(32);
  model.set_n_layer(2);
  model.set_n_head(2);
  spec.mutable_data()->add_files(folder.Write("text", Text(6000)));
  spec.mutable_data()->set_format(v1::DataSpec::BYTES);
  spec.mutable_data()->set_sequence_length(24);
  spec.mutable_data()->set_held_out_fraction(0.2);
  spec.mutable_batch()->set_global_batch_size(12);
  spec.mutable_batch()->set_micro_batch_size(2);
  spec.mutable_schedule()->set_max_steps(6);
  spec.mutable_schedule()->set_warmup_steps(2);
  spec.mutable_schedule()->set_peak_learning_rate(3e-3);
  spec.mutable_numerics()->set_seed(3);
  spec.set_output_directory(folder.Path("out"));
  return spec;
}

OpenedJob MustOpen(const v1::JobSpec& spec) {
  const auto resolved = ResolveJobSpec(spec);
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  auto job = OpenedJob::Open(resolved->SerializeAsString());
  EXPECT_TRUE(job.ok()) << job.status();
  return *std::move(job);
}

struct Outcome {
  std::string weights;  // SHA-256.
  std::vector<double> losses;
  std::vector<double> norms;
  std::vector<int64_t> skipped;  // Steps, which have no loss or norm here.
  double held_out = 0;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

// "w0", "w1", ...
std::vector<WorkerId> Workers(size_t world) {
  std::vector<WorkerId> workers;
  for (size_t rank = 0; rank < world; ++rank) {
    workers.push_back({absl::StrCat("w", rank)});
  }
  return workers;
}

// Trains the job on `ranges.size()` ranks in as many threads; every rank must
// come out the same.
Outcome Train(const v1::JobSpec& spec,
              const std::vector<MicroBatchRange>& ranges, int threads = 1) {
  const auto world = static_cast<int>(ranges.size());
  auto communicators = MakeLoopbackGroup(world);
  std::vector<Outcome> outcomes(world);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.emplace_back([&, rank] {
      const OpenedJob job = MustOpen(spec);
      auto device = kernels::CreateCpuDevice(threads);
      ASSERT_TRUE(device.ok());
      auto training =
          Training::Create(job, rank, world, **device, RealClock(), nullptr);
      ASSERT_TRUE(training.ok()) << training.status();
      const absl::Status joined = (*training)->Join(
          std::move(communicators[rank]), Workers(ranges.size()), ranges, 0);
      ASSERT_TRUE(joined.ok()) << joined;
      Outcome& outcome = outcomes[rank];
      for (int64_t step = 0; step < job.max_steps(); ++step) {
        auto result = (*training)->Step();
        ASSERT_TRUE(result.ok()) << result.status();
        if (result->result.skipped()) {
          outcome.skipped.push_back(step);
          continue;
        }
        outcome.losses.push_back(result->result.loss.mean());
        outcome.norms.push_back(result->result.gradient_norm);
      }
      auto evaluation = (*training)->Evaluate();
      ASSERT_TRUE(evaluation.ok()) << evaluation.status();
      // Not a NaN, which would equal nothing.
      const double held_out = evaluation->loss.mean();
      outcome.held_out = std::isnan(held_out) ? -1 : held_out;
      ASSERT_TRUE((*training)->Barrier().ok());
      Sha256 digest;
      const absl::Status read =
          (*training)->ReadWeights([&](int unit, const float* values) {
            digest.Update(values,
                          job.layout().units[unit].range.element_count * 4);
            return absl::OkStatus();
          });
      ASSERT_TRUE(read.ok()) << read;
      outcome.weights = digest.HexDigest();
    });
  }
  for (std::thread& thread : ranks) thread.join();
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome, outcomes[0]);
  return outcomes[0];
}

v1::LlamaConfig SmallLlama() {
  v1::LlamaConfig model;
  model.set_vocab_size(256);
  model.set_hidden_size(32);
  model.set_intermediate_size(40);
  model.set_num_hidden_layers(3);
  model.set_num_attention_heads(4);
  model.set_num_key_value_heads(2);
  return model;
}

bool HasBfloat16() {
  auto device = kernels::CreateCpuDevice(1);
  EXPECT_TRUE(device.ok());
  return (*device)->has_bfloat16();
}

std::vector<MicroBatchRange> Evenly(int world) {
  std::vector<MicroBatchRange> ranges;
  for (int rank = 0; rank < world; ++rank) {
    ranges.push_back(MicroBatchesOf(6, rank, world));
  }
  return ranges;
}

TEST(TrainingTest, TheBitsDependOnTheJobAlone) {
  TestFolder folder;
  const v1::JobSpec spec = Spec(folder);
  const Outcome base = Train(spec, Evenly(1));
  EXPECT_LT(base.losses.back(), base.losses.front());

  for (int world : {2, 3, 4, 7}) {
    EXPECT_EQ(Train(spec, Evenly(world)), base) << "world " << world;
  }
  EXPECT_EQ(Train(spec, {{0, 1}, {1, 0}, {1, 5}}), base) << "an idle rank";
  EXPECT_EQ(Train(spec, {{4, 2}, {0, 4}}), base) << "out of order";
  EXPECT_EQ(Train(spec, Evenly(2), 2), base) << "two threads";
  EXPECT_EQ(Train(spec, Evenly(1), 3), base) << "three threads";
  for (int bucket_bytes : {1024, 5000, 64 << 10, 1 << 20}) {
    for (bool overlap : {true, false}) {
      v1::JobSpec other = spec;
      other.mutable_parallel()->set_bucket_bytes(bucket_bytes);
      other.mutable_parallel()->set_overlap(overlap);
      EXPECT_EQ(Train(other, Evenly(3)), base)
          << "bucket_bytes=" << bucket_bytes << " overlap=" << overlap;
    }
  }
}

// Both families, both precisions, with dropout; recompute too.
TEST(TrainingTest, TheBitsOfEveryKindOfModelDependOnTheJobAlone) {
  TestFolder folder;
  std::set<std::string> hashes;
  for (const bool llama : {false, true}) {
    for (const auto precision :
         {v1::NumericsSpec::FLOAT32, v1::NumericsSpec::BFLOAT16}) {
      if (precision == v1::NumericsSpec::BFLOAT16 && !HasBfloat16()) continue;
      v1::JobSpec spec = Spec(folder);
      if (llama) *spec.mutable_model()->mutable_llama() = SmallLlama();
      spec.mutable_numerics()->set_precision(precision);
      spec.mutable_numerics()->set_dropout(0.1);
      const Outcome base = Train(spec, Evenly(1));
      EXPECT_LT(base.losses.back(), base.losses.front());
      EXPECT_TRUE(hashes.insert(base.weights).second);

      const std::string what =
          absl::StrCat(llama ? "llama " : "gpt2 ", precision);
      EXPECT_EQ(Train(spec, Evenly(3), 2), base) << what;
      EXPECT_EQ(Train(spec, {{4, 2}, {0, 0}, {0, 4}}), base) << what;
      for (const int stage : {1, 2, 3}) {
        spec.mutable_parallel()->set_zero_stage(stage);
        for (const int bucket_bytes : {5000, 64 << 10}) {
          spec.mutable_parallel()->set_bucket_bytes(bucket_bytes);
          EXPECT_EQ(Train(spec, Evenly(stage + 1)), base)
              << what << " stage " << stage;
          EXPECT_EQ(Train(spec, {{4, 2}, {0, 0}, {0, 4}}, 2), base)
              << what << " stage " << stage;
        }
      }
      spec.mutable_parallel()->set_recompute(v1::ParallelSpec::BLOCK);
      EXPECT_EQ(Train(spec, Evenly(2), 3), base) << what;
      spec.mutable_parallel()->set_zero_stage(0);
      EXPECT_EQ(Train(spec, Evenly(2), 3), base) << what;
    }
  }
  EXPECT_GE(hashes.size(), 2u);
}

// Trains a few steps and compares memory and traffic with the plan's.
void ExpectAsPlanned(const v1::JobSpec& spec,
                     const std::vector<MicroBatchRange>& ranges, int threads) {
  const auto world = static_cast<int>(ranges.size());
  SCOPED_TRACE(absl::StrCat("stage ", spec.parallel().zero_stage(), " world ",
                            world, " threads ", threads));
  auto communicators = MakeLoopbackGroup(world);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.emplace_back([&, rank] {
      const OpenedJob job = MustOpen(spec);
      auto device = kernels::CreateCpuDevice(threads).value();
      auto training =
          Training::Create(job, rank, world, *device, RealClock(), nullptr)
              .value();
      const absl::Status joined = training->Join(
          std::move(communicators[rank]), Workers(ranges.size()), ranges, 0);
      ASSERT_TRUE(joined.ok()) << joined;

      const v1::JobSpec& resolved = job.spec();
      const MemoryPlan memory =
          PlanMemory(job.model(), job.layout(),
                     {.decoder = DecoderShapeOf(resolved, threads),
                      .bucket_bytes = resolved.parallel().bucket_bytes(),
                      .zero_stage = resolved.parallel().zero_stage(),
                      .rank = rank,
                      .world = world});
      EXPECT_EQ(device->allocated_bytes(), memory.device_bytes);

      int64_t round_count = 0;
      for (const MicroBatchRange& range : ranges) {
        round_count = std::max(round_count, range.count);
      }
      const TrafficShape shape = {
          .zero_stage = resolved.parallel().zero_stage(),
          .rank = rank,
          .world = world,
          .bucket_elements = resolved.parallel().bucket_bytes() / 4,
          .round_count = round_count,
          .tied_head = job.model().tied_head};
      const TrafficPlan traffic = PlanTraffic(job.layout(), shape);
      int64_t wide_count = 0;
      int64_t narrow_count = 0;
      for (int64_t step = 0; step < 3; ++step) {
        const auto outcome = training->Step();
        ASSERT_TRUE(outcome.ok()) << outcome.status();
        int64_t expected = traffic.commit_bytes + traffic.reduction_bytes;
        for (const BucketTrace& bucket : outcome->trace.buckets) {
          ++(bucket.wide ? wide_count : narrow_count);
          if (!bucket.wide) continue;
          const int64_t n = bucket.range.element_count;
          expected += BucketReductionBytes(n, true, shape) -
                      BucketReductionBytes(n, false, shape);
        }
        // Up to stage 2 the gathers of an update count in the step after it.
        if (shape.zero_stage == 3 || step > 0) expected += traffic.gather_bytes;
        EXPECT_EQ(outcome->trace.sent_bytes, expected)
            << "rank " << rank << " step " << step;
      }
      EXPECT_GT(narrow_count, 0);
      EXPECT_EQ(wide_count > 0, world > 1);
    });
  }
  for (std::thread& thread : ranks) thread.join();
}

TEST(TrainingTest, MemoryAndTrafficAreAsPlanned) {
  TestFolder folder;
  for (const bool llama : {false, true}) {
    v1::JobSpec spec = Spec(folder);
    if (llama) *spec.mutable_model()->mutable_llama() = SmallLlama();
    for (int stage = 0; stage <= 3; ++stage) {
      spec.mutable_parallel()->set_zero_stage(stage);
      for (int world = 1; world <= 4; ++world) {
        spec.mutable_parallel()->set_bucket_bytes(llama ? 5000 : 64 << 10);
        ExpectAsPlanned(spec, Evenly(world), 1 + world % 2);
      }
      spec.mutable_parallel()->set_bucket_bytes(26 << 20);
      ExpectAsPlanned(spec, {{4, 2}, {0, 0}, {0, 4}}, 4);
    }
  }
}

TEST(TrainingTest, MemoryIsAsPlannedForEveryKindOfModel) {
  TestFolder folder;
  for (const bool llama : {false, true}) {
    for (const bool tied : {false, true}) {
      for (const auto precision :
           {v1::NumericsSpec::FLOAT32, v1::NumericsSpec::BFLOAT16}) {
        if (precision == v1::NumericsSpec::BFLOAT16 && !HasBfloat16()) continue;
        for (const auto recompute :
             {v1::ParallelSpec::NONE, v1::ParallelSpec::BLOCK}) {
          for (const double dropout : {0.0, 0.1}) {
            v1::JobSpec spec = Spec(folder);
            if (llama) {
              *spec.mutable_model()->mutable_llama() = SmallLlama();
              spec.mutable_model()->mutable_llama()->set_tie_word_embeddings(
                  tied);
            } else {
              spec.mutable_model()->mutable_gpt2()->set_tie_word_embeddings(
                  tied);
            }
            spec.mutable_numerics()->set_precision(precision);
            spec.mutable_numerics()->set_dropout(dropout);
            spec.mutable_parallel()->set_recompute(recompute);
            for (const int stage : {0, 3}) {
              spec.mutable_parallel()->set_zero_stage(stage);
              ExpectAsPlanned(spec, Evenly(2), 3);
            }
          }
        }
      }
    }
  }
}

// Each rounding to bfloat16 is off by 2^-9 of its value at most, in no
// direction more than in another, and a product's many errors cancel: what is
// left of them moves the loss by far less than one of them, 2^-9 nats.
TEST(TrainingTest, Bfloat16LearnsAsFloat32Does) {
  if (!HasBfloat16()) GTEST_SKIP() << "no AVX-512";
  TestFolder folder;
  v1::JobSpec spec = Spec(folder);
  spec.mutable_schedule()->set_max_steps(20);
  const Outcome single = Train(spec, Evenly(1));
  spec.mutable_numerics()->set_precision(v1::NumericsSpec::BFLOAT16);
  const Outcome rounded = Train(spec, Evenly(1));

  EXPECT_NE(rounded.weights, single.weights);
  for (size_t i = 0; i < single.losses.size(); ++i) {
    EXPECT_NEAR(rounded.losses[i], single.losses[i], 0x1p-9) << i;
  }
  EXPECT_NEAR(rounded.held_out, single.held_out, 0x1p-9);
}

TEST(TrainingTest, TheBitsWithSkippedStepsDependOnTheJobAlone) {
  TestFolder folder;
  v1::JobSpec spec = Spec(folder);
  spec.mutable_schedule()->set_max_steps(12);
  spec.mutable_schedule()->set_warmup_steps(0);
  spec.mutable_schedule()->set_peak_learning_rate(10);
  spec.mutable_optimizer()->set_clip_norm(0);
  spec.mutable_optimizer()->set_beta1(0.99);
  spec.mutable_optimizer()->set_weight_decay(10);
  spec.mutable_numerics()->set_skipped_steps_max(1000);
  spec.mutable_data()->set_held_out_fraction(0);
  const Outcome base = Train(spec, Evenly(1));
  EXPECT_FALSE(base.skipped.empty());
  EXPECT_LT(base.skipped.size(), 12u);

  EXPECT_EQ(Train(spec, Evenly(3)), base);
  EXPECT_EQ(Train(spec, {{4, 2}, {0, 0}, {0, 4}}, 2), base);
}

// Trains up to `end` steps, from the newest checkpoint in `folder` if there is
// one, and saves every 2 steps and at the end; returns the weights' SHA-256.
std::string TrainOn(const v1::JobSpec& spec, const TestFolder& folder,
                    const std::vector<MicroBatchRange>& ranges, int64_t end) {
  const auto world = static_cast<int>(ranges.size());
  const std::string staging = folder.Path("staging");
  std::filesystem::remove_all(staging);
  std::filesystem::create_directories(staging);
  const auto progress = [] { return absl::OkStatus(); };
  auto communicators = MakeLoopbackGroup(world);
  std::vector<std::string> weights(world);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.emplace_back([&, rank] {
      const OpenedJob job = MustOpen(spec);
      auto device = kernels::CreateCpuDevice(1);
      auto found = FindNewestCheckpoint(
          folder.Path("checkpoints"), {"j", job.spec_digest()}, /*verify=*/true,
          progress, [](const absl::Status& why) { ADD_FAILURE() << why; });
      ASSERT_TRUE(found.ok()) << found.status();
      const Checkpoint* from = found->has_value() ? &**found : nullptr;
      const int64_t first = from == nullptr ? 0 : from->info().step_count;
      // An odd rank had begun from the start, and is told otherwise.
      const bool is_late = from != nullptr && rank % 2 == 1;
      auto training = Training::Create(job, rank, world, **device, RealClock(),
                                       is_late ? nullptr : from)
                          .value();
      if (is_late) {
        ASSERT_EQ(training->Restore(*from), absl::OkStatus());
      }
      ASSERT_EQ(training->Join(std::move(communicators[rank]),
                               Workers(ranges.size()), ranges, first),
                absl::OkStatus());
      auto checkpointer = Checkpointer::Create(
                              job.layout(), training->owned(),
                              {.checkpoints_folder = folder.Path("checkpoints"),
                               .staging_folder = staging,
                               .rank = rank,
                               .world = world,
                               .every_steps = 2,
                               .max_steps = end,
                               .complete_step_count = first},
                              RealClock())
                              .value();
      const auto settle = [&] {
        return checkpointer->Settle(
            [&](int64_t* words, int64_t count) {
              return training->MaxOverRanks(words, count);
            },
            progress);
      };
      for (int64_t step = first; step < end; ++step) {
        Votes votes;
        checkpointer->AddVotes(step + 1, votes);
        const auto outcome = training->Step(votes);
        ASSERT_TRUE(outcome.ok()) << outcome.status();
        checkpointer->OnCommit(outcome->result);
        if (!outcome->result.checkpoint) continue;
        ASSERT_EQ(settle(), absl::OkStatus());
        ASSERT_EQ(training->CopyState(checkpointer->Snapshot()),
                  absl::OkStatus());
        CheckpointInfo info = training->DescribeState({{"j"}, 1});
        info.ledger = {{1, 1, 0, info.step_count, {{"w"}}, {{0, 6}}}};
        checkpointer->Save(std::move(info));
      }
      ASSERT_EQ(settle(), absl::OkStatus());
      EXPECT_EQ(checkpointer->TakeFailure(), std::nullopt);
      EXPECT_EQ(checkpointer->complete_step_count(), end);
      ASSERT_TRUE(training->Barrier().ok());
      Sha256 digest;
      ASSERT_TRUE(training
                      ->ReadWeights([&](int unit, const float* values) {
                        digest.Update(
                            values,
                            job.layout().units[unit].range.element_count * 4);
                        return absl::OkStatus();
                      })
                      .ok());
      weights[rank] = digest.HexDigest();
    });
  }
  for (std::thread& thread : ranks) thread.join();
  for (const std::string& w : weights) EXPECT_EQ(w, weights[0]);
  return weights[0];
}

TEST(TrainingTest, ACheckpointGoesOnAtAnyWorldAndStageWithTheSameBits) {
  for (const bool llama : {false, true}) {
    TestFolder folder;
    v1::JobSpec spec = Spec(folder);
    if (llama) *spec.mutable_model()->mutable_llama() = SmallLlama();
    spec.mutable_numerics()->set_dropout(0.1);
    spec.mutable_schedule()->set_max_steps(12);
    const Outcome base = Train(spec, Evenly(1));

    const struct {
      int stage, world;
      int64_t end;
    } kParts[] = {{3, 3, 3}, {1, 2, 5}, {2, 4, 9}, {0, 1, 12}};
    std::string weights;
    for (const auto& part : kParts) {
      spec.mutable_parallel()->set_zero_stage(part.stage);
      spec.mutable_parallel()->set_bucket_bytes(2000 * (part.stage + 1));
      weights = TrainOn(spec, folder, Evenly(part.world), part.end);
      // While one is written no other is begun, but at the end.
      const auto there = ListCheckpoints(folder.Path("checkpoints")).value();
      ASSERT_FALSE(there.empty());
      EXPECT_LE(there.size(), 2u);
      EXPECT_EQ(there[0], part.end);
    }
    EXPECT_EQ(weights, base.weights);
  }
}

// A new job from another's state: its weights, or all of it.
TEST(TrainingTest, AJobBeginsFromAnothersCheckpoint) {
  TestFolder folder;
  const v1::JobSpec first = Spec(folder);
  TrainOn(first, folder, Evenly(3), 4);
  v1::JobSpec spec = first;
  v1::CheckpointSource& source = *spec.mutable_model()->mutable_checkpoint();
  source.set_folder(folder.Path("checkpoints/step-000000000004"));

  const Outcome weights = Train(spec, Evenly(2));
  source.set_optimizer(true);
  const Outcome all = Train(spec, Evenly(2));

  EXPECT_NE(weights.weights, all.weights);
  spec.mutable_parallel()->set_zero_stage(3);
  EXPECT_EQ(Train(spec, Evenly(4)), all);
  // The first step's loss is that of the weights, which have learned.
  EXPECT_EQ(weights.losses[0], all.losses[0]);
  EXPECT_LT(weights.losses[0], Train(first, Evenly(1)).losses[0]);
}

TEST(TrainingTest, ACheckpointOfOtherDataIsRefusedByName) {
  TestFolder folder;
  const v1::JobSpec spec = Spec(folder);
  TrainOn(spec, folder, Evenly(2), 2);
  folder.Write("text", "X" + Text(6000).substr(1));
  const OpenedJob job = MustOpen(spec);
  auto device = kernels::CreateCpuDevice(1);
  auto training =
      Training::Create(job, 0, 1, **device, RealClock(), nullptr).value();
  const auto checkpoint =
      Checkpoint::Open(folder.Path("checkpoints/step-000000000002"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();

  const absl::Status status = training->Restore(*checkpoint);

  EXPECT_EQ(CauseOf(status), Failure::Cause::kJob);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(checkpoint->folder()),
                    HasSubstr("data of the fingerprint")));
}

TEST(TrainingTest, AnotherSeedOrMicroBatchIsAnotherJob) {
  TestFolder folder;
  v1::JobSpec spec = Spec(folder);
  const Outcome base = Train(spec, Evenly(1));

  v1::JobSpec seed = spec;
  seed.mutable_numerics()->set_seed(4);
  EXPECT_NE(Train(seed, Evenly(1)).weights, base.weights);

  // The same samples in other micro-batches: rounded elsewhere, nearly equal.
  v1::JobSpec micro = spec;
  micro.mutable_batch()->set_micro_batch_size(12);
  const Outcome other = Train(micro, {{0, 1}});
  ASSERT_EQ(other.losses.size(), base.losses.size());
  for (size_t i = 0; i < base.losses.size(); ++i) {
    EXPECT_NEAR(other.losses[i], base.losses[i], 2e-5);
    EXPECT_NEAR(other.norms[i], base.norms[i], 2e-4);
  }
}

TEST(TrainingTest, RanksThatSeeOtherDataAreRefusedByName) {
  TestFolder folder;
  const v1::JobSpec spec = Spec(folder);
  const OpenedJob job0 = MustOpen(spec);
  // Another file under the same path, as on another host.
  std::filesystem::remove(folder.Path("text"));
  folder.Write("text", "X" + Text(6000).substr(1));
  const OpenedJob job1 = MustOpen(spec);
  auto communicators = MakeLoopbackGroup(2);
  absl::Status statuses[2];
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      auto device = kernels::CreateCpuDevice(1);
      auto training = Training::Create(rank == 0 ? job0 : job1, rank, 2,
                                       **device, RealClock(), nullptr);
      ASSERT_TRUE(training.ok());
      statuses[rank] = (*training)->Join(std::move(communicators[rank]),
                                         Workers(2), Evenly(2), 0);
    });
  }
  for (std::thread& thread : ranks) thread.join();

  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(CauseOf(status), Failure::Cause::kJob);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(folder.Path("text")),
                      HasSubstr("is not the same for rank 1 (worker w1) as for "
                                "rank 0 (worker w0): "),
                      HasSubstr("rank 1 (worker w1) differs from rank 0 "
                                "(worker w0) in the contents of the data "
                                "files; ")));
  }
}

TEST(TrainingTest, AnAbortEndsAStepThatWaitsForAPeer) {
  TestFolder folder;
  const OpenedJob job = MustOpen(Spec(folder));
  auto communicators = MakeLoopbackGroup(2);
  auto device = kernels::CreateCpuDevice(1);
  auto waiting =
      Training::Create(job, 0, 2, **device, RealClock(), nullptr).value();
  absl::Notification joined;
  std::thread peer([&] {
    auto own_device = kernels::CreateCpuDevice(1);
    auto idle =
        Training::Create(job, 1, 2, **own_device, RealClock(), nullptr).value();
    EXPECT_TRUE(
        idle->Join(std::move(communicators[1]), Workers(2), Evenly(2), 0).ok());
    // It never takes a step.
    joined.WaitForNotification();
    waiting->Abort(absl::CancelledError("enough"));
  });
  EXPECT_TRUE(
      waiting->Join(std::move(communicators[0]), Workers(2), Evenly(2), 0)
          .ok());
  joined.Notify();
  const absl::Status ended = waiting->Step().status();
  peer.join();

  EXPECT_EQ(ended.code(), absl::StatusCode::kCancelled);
}

TEST(TrainingTest, LossesThatStayNotFiniteEndTheJobByItsOwnFault) {
  TestFolder folder;
  v1::JobSpec spec = Spec(folder);
  spec.mutable_schedule()->set_max_steps(50);
  spec.mutable_schedule()->set_warmup_steps(0);
  spec.mutable_schedule()->set_peak_learning_rate(10);
  spec.mutable_optimizer()->set_clip_norm(0);
  spec.mutable_optimizer()->set_beta1(0.99);
  spec.mutable_optimizer()->set_weight_decay(10);
  const OpenedJob job = MustOpen(spec);
  auto device = kernels::CreateCpuDevice(1);
  auto training =
      Training::Create(job, 0, 1, **device, RealClock(), nullptr).value();
  ASSERT_TRUE(training
                  ->Join(std::move(MakeLoopbackGroup(1).front()), Workers(1),
                         Evenly(1), 0)
                  .ok());

  absl::Status status;
  int64_t skipped = 0;
  for (int64_t step = 0; step < 50 && status.ok(); ++step) {
    auto outcome = training->Step();
    status = outcome.status();
    if (outcome.ok()) skipped += outcome->result.skipped();
  }

  EXPECT_EQ(CauseOf(status), Failure::Cause::kJob) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("peak_learning_rate"));
  EXPECT_EQ(skipped, 4);
}

}  // namespace
}  // namespace lockstep
