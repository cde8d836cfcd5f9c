#include "common/job_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/bytes_text.h"
#include "common/sharding.h"
#include "common/spec.h"
#include "common/step_work.h"
#include "common/traffic_plan.h"

namespace lockstep {
namespace {

constexpr int64_t kFloat = sizeof(float);

// More are not looked at.
constexpr int kWorkersMax = 4096;

// Plans of one spec, of which a few fields may be changed.
class Planner {
 public:
  Planner(const v1::JobSpec& spec, const ModelConfig& model,
          const v1::PlannedWorker& worker)
      : spec_(spec),
        model_(model),
        layout_(MakeLayout(model)),
        worker_(worker) {}

  v1::JobSpec& spec() { return spec_; }
  const Layout& layout() const { return layout_; }

  MemoryPlan Memory(int stage, int world) const {
    return PlanMemory(model_, layout_,
                      {.decoder = DecoderShapeOf(spec_, worker_.thread_count()),
                       .bucket_bytes = spec_.parallel().bucket_bytes(),
                       .zero_stage = stage,
                       .world = world,
                       .checkpoints = SavesCheckpoints(spec_)});
  }
  bool Fits(const MemoryPlan& memory) const {
    return worker_.memory_bytes() <= 0 ||
           memory.peak_bytes() <= worker_.memory_bytes();
  }

  // The lowest that fits so many workers, of those that the spec allows.
  std::optional<int> StageFor(int world) const {
    for (int stage = 0; stage <= kZeroStageMax; ++stage) {
      if (Allows(stage) && Fits(Memory(stage, world))) return stage;
    }
    return std::nullopt;
  }
  // From `least` to `most`; none if it does not fit `most` either.
  std::optional<int> FewestWorkers(int least, int most) const {
    if (!StageFor(most).has_value()) return std::nullopt;
    if (StageFor(least).has_value()) return least;
    // What a rank needs falls with their number.
    int too_few = least;
    int enough = most;
    while (enough - too_few > 1) {
      const int middle = too_few + (enough - too_few) / 2;
      (StageFor(middle).has_value() ? enough : too_few) = middle;
    }
    return enough;
  }

  SequenceWork Work() const {
    return WorkOfSequence(
        model_, spec_.data().sequence_length(),
        spec_.parallel().recompute() == v1::ParallelSpec::BLOCK);
  }

  v1::JobPlanRow Row(int stage, int world) const;

 private:
  bool Allows(int stage) const {
    return !spec_.parallel().has_zero_stage() ||
           spec_.parallel().zero_stage() == stage;
  }
  int64_t Rounds(int world) const {
    return (MicroBatchesPerStep(spec_) + world - 1) / world;
  }
  TrafficPlan Traffic(int stage, int world) const;
  void Predict(const MemoryPlan& memory, const TrafficPlan& traffic, int world,
               v1::JobPlanRow& row) const;

  v1::JobSpec spec_;
  const ModelConfig model_;
  const Layout layout_;
  const v1::PlannedWorker worker_;
};

// The more a rank owns, the less it sends of sums and the more of parameters:
// the first or the last sends the most.
TrafficPlan Planner::Traffic(int stage, int world) const {
  TrafficShape shape = {
      .zero_stage = stage,
      .world = world,
      .bucket_elements = spec_.parallel().bucket_bytes() / kFloat,
      .round_count = Rounds(world),
      .tied_head = model_.tied_head};
  const TrafficPlan first = PlanTraffic(layout_, shape);
  shape.rank = world - 1;
  const TrafficPlan last = PlanTraffic(layout_, shape);
  return first.total_bytes() >= last.total_bytes() ? first : last;
}

void Planner::Predict(const MemoryPlan& memory, const TrafficPlan& traffic,
                      int world, v1::JobPlanRow& row) const {
  if (worker_.flops_per_second() <= 0 ||
      worker_.memory_bytes_per_second() <= 0 ||
      worker_.network_bytes_per_second() <= 0) {
    return;
  }
  using enum MemoryItem;
  const auto rounds = static_cast<double>(Rounds(world));
  const double sequences =
      rounds * static_cast<double>(spec_.batch().micro_batch_size());
  const auto elements = static_cast<double>(layout_.element_count);
  const auto owned = static_cast<double>(memory[kOptimizer]) / 8;
  // A micro-batch reads parameters in forward and in backward twice, writes and
  // reads activations, and each element's gradient is written, read and added
  // to 8 bytes.  A step zeroes the sums and measures them twice, and an update
  // reads them once more, and a parameter and two moments to and fro.
  const double parameter_bytes = memory[kRounded] > 0 ? 2 : 4;
  const double micro_batch_bytes =
      elements * (3 * parameter_bytes + 4 + 4 + 16) +
      3 * static_cast<double>(memory[kActivations] + memory[kGradients]);
  const double step_bytes =
      static_cast<double>(memory[kAccumulators]) + owned * (3 * 8 + 2 * 12);

  v1::PlannedTime& time = *row.mutable_time();
  time.set_matmul_seconds(sequences * Work().total_flops() /
                          worker_.flops_per_second());
  time.set_memory_seconds((rounds * micro_batch_bytes + step_bytes) /
                          worker_.memory_bytes_per_second());
  time.set_collective_seconds(static_cast<double>(traffic.total_bytes()) /
                              worker_.network_bytes_per_second());
  const double compute = time.matmul_seconds() + time.memory_seconds();
  time.set_step_seconds(spec_.parallel().overlap()
                            ? std::max(compute, time.collective_seconds())
                            : compute + time.collective_seconds());
  time.set_bound(time.collective_seconds() >=
                         std::max(time.matmul_seconds(), time.memory_seconds())
                     ? v1::PlannedTime::COLLECTIVE
                 : time.matmul_seconds() >= time.memory_seconds()
                     ? v1::PlannedTime::MATMUL
                     : v1::PlannedTime::MEMORY);
  if (KnowsMaxSteps(spec_)) {
    const auto steps = MaxSteps(spec_, 0);
    if (steps.ok()) {
      time.set_job_seconds(static_cast<double>(*steps) * time.step_seconds());
    }
  }
}

v1::JobPlanRow Planner::Row(int stage, int world) const {
  const MemoryPlan memory = Memory(stage, world);
  const TrafficPlan traffic = Traffic(stage, world);
  using enum MemoryItem;
  v1::JobPlanRow row;
  row.set_zero_stage(stage);
  row.set_worker_count(world);
  row.set_fits(Fits(memory));
  v1::PlannedMemory& m = *row.mutable_memory();
  m.set_parameters_bytes(memory[kParameters]);
  m.set_rounded_parameters_bytes(memory[kRounded]);
  m.set_gathered_units_bytes(memory[kGatheredUnits]);
  m.set_accumulators_bytes(memory[kAccumulators]);
  m.set_staging_units_bytes(memory[kStagingUnits]);
  m.set_optimizer_bytes(memory[kOptimizer]);
  m.set_activations_bytes(memory[kActivations]);
  m.set_gradients_bytes(memory[kGradients]);
  m.set_logits_bytes(memory[kLogits]);
  m.set_workspace_bytes(memory[kWorkspace]);
  m.set_commit_bytes(memory[kCommit]);
  m.set_device_bytes(memory.device_bytes);
  m.set_checkpoint_bytes(memory.checkpoint_bytes);
  m.set_load_bytes(memory.load_bytes());
  m.set_training_bytes(memory.training_bytes());
  m.set_save_bytes(memory.save_bytes());
  m.set_peak_bytes(memory.peak_bytes());
  v1::PlannedTraffic& t = *row.mutable_traffic();
  t.set_reduction_bytes(traffic.reduction_bytes);
  t.set_wide_reduction_bytes(traffic.wide_reduction_bytes);
  t.set_gather_bytes(traffic.gather_bytes);
  t.set_commit_bytes(traffic.commit_bytes);
  Predict(memory, traffic, world, row);
  return row;
}

// Ends of the range, and powers of two between them.
std::vector<int> WorldsOf(int min, int max) {
  constexpr int kAllMax = 8;
  std::vector<int> worlds;
  for (int world = min; world <= max; ++world) {
    const bool power = (world & (world - 1)) == 0;
    if (world == min || world == max || power || max - min < kAllMax) {
      worlds.push_back(world);
    }
  }
  return worlds;
}

// What alone would make it fit, and if nothing would, what together.
std::vector<std::string> AdviceFor(const v1::JobSpec& spec,
                                   const ModelConfig& model,
                                   const v1::PlannedWorker& worker) {
  const int min_workers = spec.parallel().min_workers();
  const Planner as_is(spec, model, worker);
  std::vector<std::string> advice;
  if (spec.parallel().has_zero_stage()) {
    for (int stage = spec.parallel().zero_stage() + 1; stage <= kZeroStageMax;
         ++stage) {
      if (!as_is.Fits(as_is.Memory(stage, min_workers))) continue;
      advice.push_back(absl::StrCat("parallel.zero_stage: ", stage,
                                    ", or leave it out: the same bits"));
      break;
    }
  }
  const bool recomputes =
      spec.parallel().recompute() == v1::ParallelSpec::BLOCK;
  if (!recomputes) {
    Planner changed = as_is;
    changed.spec().mutable_parallel()->set_recompute(v1::ParallelSpec::BLOCK);
    if (changed.StageFor(min_workers).has_value()) {
      advice.push_back(
          "parallel.recompute: BLOCK: the same bits, about a third more time");
    }
  }
  const auto micro_batch = static_cast<int>(spec.batch().micro_batch_size());
  for (int size = micro_batch - 1; size > 0; --size) {
    if (micro_batch % size != 0) continue;
    Planner changed = as_is;
    changed.spec().mutable_batch()->set_micro_batch_size(size);
    if (!changed.StageFor(min_workers).has_value()) continue;
    advice.push_back(
        absl::StrCat("batch.micro_batch_size: ", size,
                     ": the same samples a step, rounded otherwise"));
    break;
  }
  const auto world_max = static_cast<int>(
      std::min<int64_t>(MicroBatchesPerStep(spec), kWorkersMax));
  if (const auto world = as_is.FewestWorkers(min_workers, world_max)) {
    advice.push_back(absl::StrCat("parallel.min_workers: ", *world,
                                  ", on as many workers: the same bits"));
  }
  if (!advice.empty()) return advice;

  // Nothing alone: what changes no bit first.
  const auto together = [&](bool recompute, int size, int world) {
    std::vector<std::string> parts;
    if (spec.parallel().has_zero_stage()) {
      parts.emplace_back("parallel.zero_stage left out");
    }
    if (recompute && !recomputes) {
      parts.emplace_back("parallel.recompute: BLOCK");
    }
    if (size != micro_batch) {
      parts.push_back(absl::StrCat("batch.micro_batch_size: ", size));
    }
    if (world != min_workers) {
      parts.push_back(absl::StrCat("parallel.min_workers: ", world));
    }
    if (world > spec.batch().global_batch_size() / size) {
      parts.push_back(absl::StrCat("batch.global_batch_size: ", world * size,
                                   " (a step has a micro-batch for each)"));
    }
    return absl::StrCat(
        absl::StrJoin(parts, " and "), " together: ",
        size == micro_batch && world <= spec.batch().global_batch_size() / size
            ? "the same bits"
            : "not the same bits");
  };
  Planner any_stage = as_is;
  any_stage.spec().mutable_parallel()->clear_zero_stage();
  for (const bool recompute : {recomputes, true}) {
    if (recompute) {
      any_stage.spec().mutable_parallel()->set_recompute(
          v1::ParallelSpec::BLOCK);
    }
    if (const auto world = any_stage.FewestWorkers(min_workers, world_max)) {
      return {together(recompute, micro_batch, *world)};
    }
  }
  for (int size = micro_batch - 1; size > 0; --size) {
    if (micro_batch % size != 0) continue;
    any_stage.spec().mutable_batch()->set_micro_batch_size(size);
    if (any_stage.StageFor(min_workers).has_value()) {
      return {together(true, size, min_workers)};
    }
  }
  any_stage.spec().mutable_batch()->set_micro_batch_size(1);
  if (const auto world = any_stage.FewestWorkers(min_workers, kWorkersMax)) {
    return {together(true, 1, *world)};
  }
  const int64_t least =
      any_stage.Memory(kZeroStageMax, kWorkersMax).peak_bytes();
  const bool is_process = worker.memory_bytes() <= kProcessBytes;
  advice.push_back(absl::StrCat(
      is_process
          ? absl::StrCat("the process of a worker takes ",
                         BytesText(kProcessBytes), " beside what it trains")
          : std::string(
                "one unit (the embedding, a block or the head) does not fit a "
                "worker even at stage 3 with micro-batches of one sequence: "
                "tensor or pipeline parallelism would be needed, which "
                "lockstep has not"),
      "; take workers with ", BytesTextAtLeast(least),
      is_process ? "" : " or a smaller model"));
  return advice;
}

// The rates that all of `devices` have at least, products being of bfloat16 or
// of float32.
v1::PlannedWorker SlowestOf(const std::vector<v1::DeviceInfo>& devices,
                            bool bfloat16) {
  bool one_host = true;
  for (const v1::DeviceInfo& device : devices) {
    one_host &= device.host() == devices[0].host() &&
                device.rates().shared_memory_bytes_per_second() > 0;
  }
  double flops = std::numeric_limits<double>::infinity();
  double memory = flops;
  double network = flops;
  for (const v1::DeviceInfo& device : devices) {
    const v1::DeviceRates& rates = device.rates();
    flops = std::min(flops, bfloat16 ? rates.bfloat16_flops_per_second()
                                     : rates.float32_flops_per_second());
    memory = std::min(memory, rates.memory_bytes_per_second());
    network =
        std::min(network, one_host ? rates.shared_memory_bytes_per_second()
                                   : rates.network_bytes_per_second());
  }
  v1::PlannedWorker worker;
  worker.set_flops_per_second(flops);
  worker.set_memory_bytes_per_second(memory);
  worker.set_network_bytes_per_second(network);
  return worker;
}

std::string SecondsText(double seconds) {
  if (seconds < 1) return absl::StrFormat("%.0f ms", seconds * 1e3);
  if (seconds < 600) return absl::StrFormat("%.1f s", seconds);
  if (seconds < 2 * 3600) return absl::StrFormat("%.0f min", seconds / 60);
  if (seconds < 2 * 86400) return absl::StrFormat("%.1f h", seconds / 3600);
  return absl::StrFormat("%.1f days", seconds / 86400);
}

std::string BoundText(v1::PlannedTime::Bound bound) {
  switch (bound) {
    case v1::PlannedTime::MATMUL:
      return "matmul";
    case v1::PlannedTime::MEMORY:
      return "memory";
    case v1::PlannedTime::COLLECTIVE:
      return "collective";
    default:
      return "";
  }
}

std::string FlopsText(double flops) {
  static constexpr const char* kUnits[] = {"",       " kFLOP", " MFLOP",
                                           " GFLOP", " TFLOP", " PFLOP"};
  size_t unit = 0;
  while (flops >= 1000 && unit + 1 < std::size(kUnits)) {
    flops /= 1000;
    ++unit;
  }
  return absl::StrFormat("%.3g%s", flops, unit == 0 ? " FLOP" : kUnits[unit]);
}

std::string RateText(double bytes_per_second) {
  return absl::StrCat(BytesText(std::llround(std::min(bytes_per_second, 1e18))),
                      "/s");
}

}  // namespace

std::optional<ModelConfig> ModelOf(const v1::JobSpec& spec) {
  switch (spec.model().source_case()) {
    case v1::ModelSpec::kGpt2:
      return ToModelConfig(spec.model().gpt2());
    case v1::ModelSpec::kLlama:
      return ToModelConfig(spec.model().llama());
    default:
      if (!spec.model().has_sizes()) return std::nullopt;
      return ToModelConfig(spec.model().sizes());
  }
}

v1::PlannedWorker PlannedWorkerFor(const v1::JobSpec& spec,
                                   const std::vector<v1::Worker>& workers) {
  std::map<std::string, std::vector<v1::DeviceInfo>> classes;
  const bool rounds = spec.numerics().precision() == v1::NumericsSpec::BFLOAT16;
  for (const v1::Worker& worker : workers) {
    const v1::DeviceInfo& device = worker.device();
    if (worker.state() == v1::Worker::LOST || device.memory_bytes() <= 0 ||
        (rounds && !device.has_bfloat16())) {
      continue;
    }
    classes[device.numeric_class()].push_back(device);
  }
  const auto min_workers = static_cast<size_t>(spec.parallel().min_workers());
  const auto max_workers = static_cast<size_t>(spec.parallel().max_workers());
  v1::PlannedWorker best;
  for (auto& [name, devices] : classes) {
    std::sort(devices.begin(), devices.end(), [](const auto& a, const auto& b) {
      return a.memory_bytes() > b.memory_bytes();
    });
    devices.resize(std::min(devices.size(), max_workers));
    const size_t needed = std::min(devices.size(), min_workers);
    const int64_t memory = devices[needed - 1].memory_bytes();
    if (memory <= best.memory_bytes()) continue;
    best = SlowestOf(devices, rounds);
    best.set_memory_bytes(memory);
    for (size_t i = 0; i < needed; ++i) {
      best.set_thread_count(
          std::max(best.thread_count(), devices[i].thread_count()));
    }
  }
  return best;
}

v1::JobPlan PlanJob(const v1::JobSpec& spec, const ModelConfig& model,
                    const v1::PlannedWorker& worker) {
  v1::JobPlan plan;
  *plan.mutable_spec() = spec;
  *plan.mutable_worker() = worker;
  plan.mutable_worker()->set_thread_count(std::max(worker.thread_count(), 1));
  const Planner planner(spec, model, plan.worker());

  plan.set_parameter_count(planner.layout().parameter_count);
  plan.set_tokens_per_step(TokensPerStep(spec));
  if (KnowsMaxSteps(spec)) {
    const auto steps = MaxSteps(spec, 0);
    if (steps.ok()) plan.set_max_steps(*steps);
  }
  const SequenceWork work = planner.Work();
  const auto length = static_cast<double>(spec.data().sequence_length());
  plan.set_forward_flops_per_token(work.forward_flops / length);
  plan.set_backward_flops_per_token(work.backward_flops / length);
  plan.set_recompute_flops_per_token(work.recompute_flops / length);
  plan.set_flops_per_step(
      work.total_flops() *
      static_cast<double>(spec.batch().global_batch_size()));

  const v1::ParallelSpec& parallel = spec.parallel();
  const auto world_max = static_cast<int>(
      std::min<int64_t>(parallel.max_workers(), MicroBatchesPerStep(spec)));
  for (int stage = 0; stage <= kZeroStageMax; ++stage) {
    for (const int world : WorldsOf(parallel.min_workers(), world_max)) {
      *plan.add_rows() = planner.Row(stage, world);
    }
  }
  const std::optional<int> stage = planner.StageFor(parallel.min_workers());
  plan.set_fits(stage.has_value());
  plan.set_zero_stage(stage.value_or(-1));
  if (!plan.fits()) {
    for (std::string& advice : AdviceFor(spec, model, plan.worker())) {
      plan.add_advice(std::move(advice));
    }
  }
  return plan;
}

std::optional<MemoryNeeds> MemoryNeedsOf(const v1::JobSpec& spec) {
  const std::optional<ModelConfig> model = ModelOf(spec);
  if (!model.has_value()) return std::nullopt;
  return MemoryNeedsOf(*model, MakeLayout(*model),
                       DecoderShapeOf(spec, /*thread_count=*/1),
                       spec.parallel().bucket_bytes(),
                       spec.parallel().min_workers(), SavesCheckpoints(spec));
}

std::string PlanText(const v1::JobPlan& plan) {
  std::string text;
  const double flops_per_token = plan.forward_flops_per_token() +
                                 plan.backward_flops_per_token() +
                                 plan.recompute_flops_per_token();
  absl::StrAppend(&text, plan.parameter_count(), " parameters; ",
                  plan.tokens_per_step(), " tokens a step; ",
                  FlopsText(flops_per_token), " a token, ",
                  FlopsText(plan.flops_per_step()), " a step");
  if (plan.max_steps() > 0) {
    absl::StrAppend(
        &text, "; ", plan.max_steps(), " steps, ",
        absl::StrFormat("%.3g",
                        static_cast<double>(plan.max_steps()) *
                            static_cast<double>(plan.tokens_per_step())),
        " tokens");
  }
  const v1::PlannedWorker& worker = plan.worker();
  absl::StrAppend(&text, "\na worker: ",
                  worker.memory_bytes() > 0 ? BytesText(worker.memory_bytes())
                                            : std::string("memory not known"),
                  ", ", worker.thread_count(),
                  worker.thread_count() == 1 ? " thread" : " threads");
  if (worker.flops_per_second() > 0) {
    absl::StrAppend(&text, ", ", FlopsText(worker.flops_per_second()), "/s");
  }
  if (worker.memory_bytes_per_second() > 0) {
    absl::StrAppend(&text, ", memory at ",
                    RateText(worker.memory_bytes_per_second()));
  }
  if (worker.network_bytes_per_second() > 0) {
    absl::StrAppend(&text, ", collectives at ",
                    RateText(worker.network_bytes_per_second()));
  }
  absl::StrAppend(&text, "\n\n");
  const bool timed = plan.rows_size() > 0 && plan.rows(0).has_time();
  absl::StrAppend(
      &text,
      absl::StrFormat("%4s %7s %10s %10s %10s %10s %10s %10s %10s %4s %10s",
                      "ZERO", "WORKERS", "PARAMETERS", "SUMS", "OPTIMIZER",
                      "ACTIVATED", "OTHER", "LOAD", "PEAK", "FITS",
                      "SENT/STEP"),
      timed ? absl::StrFormat(" %9s %9s  %s", "STEP", "JOB", "BOUND BY") : "",
      "\n");
  for (const v1::JobPlanRow& row : plan.rows()) {
    const v1::PlannedMemory& m = row.memory();
    const v1::PlannedTraffic& t = row.traffic();
    absl::StrAppend(
        &text,
        absl::StrFormat(
            "%4d %7d %10s %10s %10s %10s %10s %10s %10s %4s %10s",
            row.zero_stage(), row.worker_count(),
            BytesText(m.parameters_bytes() + m.rounded_parameters_bytes() +
                      m.gathered_units_bytes()),
            BytesText(m.accumulators_bytes() + m.staging_units_bytes()),
            BytesText(m.optimizer_bytes()), BytesText(m.activations_bytes()),
            BytesText(m.gradients_bytes() + m.logits_bytes() +
                      m.workspace_bytes() + m.commit_bytes() +
                      m.checkpoint_bytes()),
            BytesText(m.load_bytes()), BytesTextAtLeast(m.peak_bytes()),
            worker.memory_bytes() <= 0 ? "?"
            : row.fits()               ? "yes"
                                       : "no",
            BytesText(t.reduction_bytes() + t.gather_bytes() +
                      t.commit_bytes())),
        timed ? absl::StrFormat(" %9s %9s  %s",
                                SecondsText(row.time().step_seconds()),
                                row.time().job_seconds() > 0
                                    ? SecondsText(row.time().job_seconds())
                                    : std::string("-"),
                                BoundText(row.time().bound()))
              : "",
        "\n");
  }
  const bool some_rate = worker.flops_per_second() > 0 ||
                         worker.memory_bytes_per_second() > 0 ||
                         worker.network_bytes_per_second() > 0;
  if (some_rate && !timed) {
    text += "\nTimes need the rates of products, memory and network.\n";
  }
  if (worker.memory_bytes() <= 0) {
    text += "\nWhether it fits is not known: no worker is there or given.\n";
  }
  if (!plan.fits()) {
    absl::StrAppend(&text, "\nIt does not fit ",
                    plan.spec().parallel().min_workers(),
                    plan.spec().parallel().min_workers() == 1 ? " such worker"
                                                              : " such workers",
                    ".  What would make it fit:\n");
    for (const std::string& advice : plan.advice()) {
      absl::StrAppend(&text, "  ", advice, "\n");
    }
  } else if (worker.memory_bytes() > 0) {
    absl::StrAppend(&text, "\nIt runs at ZeRO stage ", plan.zero_stage(),
                    plan.spec().parallel().has_zero_stage()
                        ? ", as it asks.\n"
                        : ", the lowest that fits.\n");
  }
  return text;
}

}  // namespace lockstep
