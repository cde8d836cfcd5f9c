// Times a GPT-2's optimizer step on one device, as a whole, by phase and by
// kind of kernel, against the rate of a large matrix product in the same run.
//
// A step is what a single worker does: micro-batches forward and backward with
// exact sums, then the exact norm and AdamW.  Kernels are timed alone on the
// model's shapes, times how often a step runs them; what they leave of the step
// is "other".  The last line is JSON with the names of a peer's benchmark.
#include <sys/resource.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/layout.h"
#include "common/model_config.h"
#include "common/philox.h"
#include "common/status.h"
#include "kernels/attention.h"
#include "kernels/column_sums.h"
#include "kernels/cross_entropy.h"
#include "kernels/device.h"
#include "kernels/exact_sum.h"
#include "kernels/gelu.h"
#include "kernels/layer_norm.h"
#include "kernels/matmul.h"
#include "worker/model/decoder.h"
#include "worker/model/whole_parameters.h"

namespace lockstep {
namespace {

using kernels::Buffer;
using kernels::Stream;

clockid_t clock_id = CLOCK_MONOTONIC;

struct Options {
  std::string model = "tiny";
  std::string family = "gpt2";
  std::string precision = "float32";
  int threads = 1;
  int64_t rows = 8;           // Of a micro-batch.
  int64_t micro_batches = 2;  // A step.
  int64_t length = 256;
  int steps = 8;
  int warmup = 2;
  // By the process's CPU time: on a machine that others use too, with one
  // thread.
  bool cpu_time = false;
};

ModelConfig ConfigOf(const Options& o) {
  struct Sizes {
    int64_t width, layers, heads, vocabulary;
  };
  static const std::map<std::string, Sizes> kModels = {
      {"tiny", {256, 4, 4, 256}},
      {"small", {384, 6, 6, 256}},
      {"gpt2", {768, 12, 12, 50257}}};
  const Sizes& s = kModels.at(o.model);
  ModelConfig c;
  c.width = s.width;
  c.layer_count = s.layers;
  c.SetPlainHeads(s.heads);
  c.vocabulary = s.vocabulary;
  c.inner_width = 4 * s.width;
  c.position_max = o.length;
  if (o.family == "llama") {
    c.family = ModelFamily::kLlama;
    // As many parameters as two products of 4 times the width have.
    c.inner_width = 8 * s.width / 3;
  }
  return c;
}

// Seconds from some fixed moment, by the clock that was asked for.
double Now() {
  timespec time;
  clock_gettime(clock_id, &time);
  return static_cast<double>(time.tv_sec) +
         1e-9 * static_cast<double>(time.tv_nsec);
}

double Median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "decoder_bench: %s\n", status.ToString().c_str());
  std::exit(1);
}

template <typename T>
T Check(absl::StatusOr<T> result) {
  Check(result.status());
  return *std::move(result);
}

// Times what a micro-batch's gradients cost to add up, apart from backward.
class ExactSink : public GradientSink {
 public:
  ExactSink(const Layout& layout, Stream& stream, int64_t* sum,
            int32_t* overflow)
      : layout_(layout), stream_(stream), sum_(sum), overflow_(overflow) {}

  absl::Status Contribute(int tensor, const float* gradient) override {
    const double start = Now();
    const Tensor& t = layout_.tensors[tensor];
    RETURN_IF_ERROR(kernels::AccumulateExact(stream_, gradient, sum_ + t.offset,
                                             t.element_count, kExponent,
                                             int64_t{1} << 58, overflow_));
    seconds += Now() - start;
    return absl::OkStatus();
  }
  absl::Status UnitDone(int) override { return absl::OkStatus(); }

  static constexpr int kExponent = -30;
  double seconds = 0;

 private:
  const Layout& layout_;
  Stream& stream_;
  int64_t* const sum_;
  int32_t* const overflow_;
};

struct Phases {
  double step = 0, forward = 0, backward = 0, accumulate = 0, update = 0;
};

// One model with everything that a step needs.
Products ProductsOf(const Options& o) {
  return o.precision == "bfloat16" ? Products::kBfloat16 : Products::kFloat32;
}

class Bench {
 public:
  explicit Bench(const Options& o)
      : options_(o),
        config_(ConfigOf(o)),
        layout_(MakeLayout(config_)),
        device_(Check(kernels::CreateCpuDevice(o.threads))),
        stream_(Check(device_->CreateStream())),
        floats_(Allocate(3 * layout_.element_count * sizeof(float))),
        sum_(Allocate(layout_.element_count * sizeof(int64_t))),
        flag_(Allocate(sizeof(int32_t))),
        source_(
            Check(WholeParameters::Create(layout_, ProductsOf(o), *stream_))),
        decoder_(
            Check(Decoder::Create(config_, layout_, o.rows, o.length, *stream_,
                                  *source_, {.products = ProductsOf(o)}))),
        tokens_(o.rows * (o.length + 1)) {
    float* const parameters = floats_->as<float>();
    for (int64_t i = 0; i < layout_.element_count; ++i) {
      const auto block =
          Philox4x32({static_cast<uint32_t>(i), 0, 0, 0}, {1, 1});
      parameters[i] = static_cast<float>(0.07 * UniformFrom(block[0]) - 0.035);
    }
    for (size_t i = 0; i < tokens_.size(); ++i) {
      tokens_[i] = static_cast<int32_t>(
          Philox4x32({static_cast<uint32_t>(i), 1, 0, 0}, {1, 1})[0] %
          config_.vocabulary);
    }
    Check(source_->Set(parameters));
  }

  const Layout& layout() const { return layout_; }
  const ModelConfig& config() const { return config_; }
  kernels::Device& device() { return *device_; }

  Phases Step(int step) {
    Phases p;
    const int64_t n = layout_.element_count;
    const double start = Now();
    Check(stream_->Zero(sum_->data(), sum_->byte_count()));
    ExactSink sink(layout_, *stream_, sum_->as<int64_t>(),
                   flag_->as<int32_t>());
    for (int64_t i = 0; i < options_.micro_batches; ++i) {
      const double begin = Now();
      Check(decoder_->Forward(tokens_.data()));
      const double middle = Now();
      Check(decoder_->Backward(sink).status());
      p.forward += middle - begin;
      p.backward += Now() - middle;
    }
    p.backward -= sink.seconds;
    p.accumulate = sink.seconds;
    const double update = Now();
    int64_t max = 0;
    int64_t limbs[kernels::kSquareLimbCount] = {};
    Check(kernels::MaxExact(*stream_, sum_->as<int64_t>(), n, &max));
    Check(kernels::AddSquaresExact(*stream_, sum_->as<int64_t>(), n, limbs));
    Check(kernels::AdamWExact(
        *stream_, floats_->as<float>(), floats_->as<float>() + n,
        floats_->as<float>() + 2 * n, sum_->as<int64_t>(), n,
        {.exponent = ExactSink::kExponent,
         .token_count =
             options_.micro_batches * options_.rows * options_.length,
         .learning_rate = 3e-4,
         .weight_decay = 0.1,
         .bias_correction1 = 1 - std::pow(0.9, step + 1),
         .bias_correction2 = 1 - std::pow(0.95, step + 1)}));
    Check(source_->Set(floats_->as<float>()));
    const double end = Now();
    p.update = end - update;
    p.step = end - start;
    LS_CHECK(*flag_->as<int32_t>() == 0);
    return p;
  }

  // Best seconds of `run` over some repetitions.
  double Best(const std::function<absl::Status(Stream&)>& run) {
    double best = 1e9;
    const double start = Now();
    for (int i = 0; i < 3 || (i < 50 && Now() - start < 0.3); ++i) {
      const double begin = Now();
      Check(run(*stream_));
      best = std::min(best, Now() - begin);
    }
    return best;
  }

  std::unique_ptr<Buffer> Allocate(int64_t bytes) {
    return Check(device_->Allocate(bytes));
  }

 private:
  const Options options_;
  const ModelConfig config_;
  const Layout layout_;
  std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Buffer> floats_;  // Parameters and both moments.
  std::unique_ptr<Buffer> sum_, flag_;
  std::unique_ptr<WholeParameters> source_;
  std::unique_ptr<Decoder> decoder_;
  std::vector<int32_t> tokens_;
};

struct KernelTime {
  std::string name;
  double count;    // A micro-batch.
  double seconds;  // Once.
  double flops;    // Once; 0 where it is not about products.
};

std::vector<KernelTime> TimeKernels(Bench& bench, const Options& o) {
  const ModelConfig& c = bench.config();
  const int64_t n = o.rows * o.length;
  const int64_t width = c.width;
  const int64_t inner = c.inner_width;
  const int64_t slice = std::min<int64_t>(
      n, std::max<int64_t>((int64_t{1} << 24) / c.vocabulary / 64 * 64, 64));
  const int64_t largest =
      std::max({n * inner, width * c.vocabulary, slice * c.vocabulary,
                int64_t{2048} * 2048});
  const auto a = bench.Allocate(largest * sizeof(float));
  const auto b = bench.Allocate(largest * sizeof(float));
  const auto out = bench.Allocate(largest * sizeof(float));
  const auto targets = bench.Allocate(n * sizeof(int32_t));
  std::fill_n(a->as<float>(), largest, 0.01f);
  std::fill_n(b->as<float>(), largest, 0.01f);
  const kernels::AttentionShape shape{o.rows, o.length, c.head_count,
                                      c.key_value_head_count, c.head_width};
  const auto workspace = bench.Allocate(
      sizeof(float) *
      std::max({kernels::AttentionWorkspace(bench.device(), shape),
                kernels::LayerNormWorkspace(n, width),
                kernels::BiasGeluWorkspace(n, inner),
                kernels::ColumnSumsWorkspace(n, 3 * width)}));
  const auto vectors =
      bench.Allocate(sizeof(float) * (8 * inner + 4 * n + n * c.head_count));
  float* const pa = a->as<float>();
  float* const pb = b->as<float>();
  float* const po = out->as<float>();
  float* const pv = vectors->as<float>();
  float* const pw = workspace->as<float>();

  std::vector<KernelTime> times;
  const auto product = [&](const char* name, double count, int64_t m,
                           int64_t columns, int64_t k, bool ta, bool tb) {
    times.push_back(
        {name, count, bench.Best([&](Stream& s) {
           return kernels::MatMul(s, m, columns, k, {pa, ta ? m : k, ta},
                                  {pb, tb ? k : columns, tb}, po, columns);
         }),
         2.0 * static_cast<double>(m) * static_cast<double>(columns) *
             static_cast<double>(k)});
  };
  const auto L = static_cast<double>(c.layer_count);
  product("product 2048^3 (machine)", 0, 2048, 2048, 2048, false, false);
  const std::pair<int64_t, int64_t> linear[] = {
      {width, 3 * width}, {width, width}, {width, inner}, {inner, width}};
  const char* const names[] = {"qkv", "attention out", "inner", "outer"};
  for (int i = 0; i < 4; ++i) {
    const auto [from, to] = linear[i];
    product((std::string(names[i]) + " forward").c_str(), L, n, to, from, false,
            false);
    product((std::string(names[i]) + " weight").c_str(), L, from, to, n, true,
            false);
    product((std::string(names[i]) + " input").c_str(), L, n, from, to, false,
            true);
  }
  const double slices = static_cast<double>(n) / static_cast<double>(slice);
  product("head forward", slices, slice, c.vocabulary, width, false, true);
  product("head weight", slices, c.vocabulary, width, slice, true, false);
  product("head input", slices, slice, width, c.vocabulary, false, false);

  // Of the half below the diagonal.
  const double attention_flops = 2.0 * static_cast<double>(n) *
                                 static_cast<double>(o.length) *
                                 static_cast<double>(width);
  times.push_back({"attention forward", L, bench.Best([&](Stream& s) {
                     return kernels::AttentionForward(s, shape, pa, po, pv, pw);
                   }),
                   attention_flops});
  times.push_back({"attention backward", L, bench.Best([&](Stream& s) {
                     return kernels::AttentionBackward(s, shape, pa, po, pv, pb,
                                                       po, pw);
                   }),
                   2 * attention_flops});
  times.push_back({"norm forward", 2 * L + 1, bench.Best([&](Stream& s) {
                     return kernels::LayerNormForward(s, pa, pb, pb, n, width,
                                                      1e-5, po, pv, pv + n);
                   }),
                   0});
  times.push_back({"norm backward", 2 * L + 1, bench.Best([&](Stream& s) {
                     return kernels::LayerNormBackward(
                         s, pa, pb, pv, pv + n, pb, n, width,
                         {.x = po,
                          .weight = pv + 2 * n,
                          .bias = pv + 2 * n + width,
                          .x_column_sums = pv + 2 * n + 2 * width},
                         pw);
                   }),
                   0});
  times.push_back({"gelu forward", L, bench.Best([&](Stream& s) {
                     return kernels::BiasGeluForward(s, pa, pb, n, inner, po);
                   }),
                   0});
  times.push_back({"gelu backward", L, bench.Best([&](Stream& s) {
                     return kernels::BiasGeluBackward(s, pa, pb, n, inner, po,
                                                      pv, pw);
                   }),
                   0});
  times.push_back({"column sums", L, bench.Best([&](Stream& s) {
                     return kernels::ColumnSums(s, pa, n, 3 * width, pv, pw);
                   }),
                   0});
  times.push_back({"cross-entropy", slices, bench.Best([&](Stream& s) {
                     return kernels::CrossEntropyForwardBackward(
                         s, po, targets->as<int32_t>(), slice, c.vocabulary,
                         pv);
                   }),
                   0});
  return times;
}

// Of forward and backward of one token: 6 a parameter that is multiplied by,
// and those of the causal half of attention's two products.
double FlopsOfToken(const ModelConfig& config, const Layout& layout,
                    int64_t length) {
  double multiplied = 0;
  for (const Tensor& t : layout.tensors) {
    const bool is_table =
        t.role == TensorRole::kPositionEmbedding ||
        (t.role == TensorRole::kTokenEmbedding && !config.tied_head);
    if (t.shape.size() == 2 && !is_table) {
      multiplied += static_cast<double>(t.element_count);
    }
  }
  return 6 * (multiplied + static_cast<double>(config.layer_count * length *
                                               config.query_width()));
}

void Run(const Options& o) {
  Bench bench(o);
  std::vector<double> step, forward, backward, accumulate, update;
  for (int i = 0; i < o.warmup + o.steps; ++i) {
    const Phases p = bench.Step(i);
    if (i < o.warmup) continue;
    step.push_back(p.step);
    forward.push_back(p.forward);
    backward.push_back(p.backward);
    accumulate.push_back(p.accumulate);
    update.push_back(p.update);
  }
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const double tokens =
      static_cast<double>(o.micro_batches * o.rows * o.length);
  const double seconds = Median(step);

  const double rate = FlopsOfToken(ConfigOf(o), bench.layout(), o.length) *
                      tokens / seconds * 1e-9;
  if (o.family != "gpt2" || o.precision != "float32") {
    std::printf(
        "{\"model\": \"%s\", \"family\": \"%s\", \"precision\": \"%s\", "
        "\"threads\": %d, "
        "\"parameters\": %lld, \"tokens_per_s\": %.1f, \"gflop_per_s\": "
        "%.1f, \"step_ms\": %.1f, \"peak_rss_mb\": %ld}\n",
        o.model.c_str(), o.family.c_str(), o.precision.c_str(), o.threads,
        static_cast<long long>(bench.layout().parameter_count),
        tokens / seconds, rate, seconds * 1e3, usage.ru_maxrss / 1024);
    return;
  }
  const std::vector<KernelTime> kernels = TimeKernels(bench, o);
  const double machine = kernels[0].flops / kernels[0].seconds;
  double flops = 0, known = 0;
  const auto micro_batches = static_cast<double>(o.micro_batches);
  std::printf("%s, %s\n", bench.device().model_name().c_str(),
              bench.device().numeric_class().c_str());
  std::printf("%-26s %9s %7s %9s %9s\n", "kernel", "ms/step", "share",
              "GFLOP/s", "of machine");
  for (const KernelTime& k : kernels) {
    const double total = k.count * k.seconds * micro_batches;
    known += total;
    flops += k.count * k.flops * micro_batches;
    std::printf("%-26s %9.2f %6.1f%%", k.name.c_str(),
                (k.count == 0 ? k.seconds : total) * 1e3,
                100 * total / seconds);
    if (k.flops > 0) {
      std::printf(" %9.1f %8.0f%%", k.flops / k.seconds * 1e-9,
                  100 * k.flops / k.seconds / machine);
    }
    std::printf("\n");
  }
  const std::pair<const char*, double> phases[] = {
      {"forward", Median(forward)},
      {"backward", Median(backward)},
      {"accumulate", Median(accumulate)},
      {"update", Median(update)}};
  for (const auto& [name, s] : phases) {
    std::printf("%-26s %9.2f %6.1f%%\n", name, s * 1e3, 100 * s / seconds);
  }
  std::printf(
      "%-26s %9.2f %6.1f%%\n", "other than kernels and sums",
      (seconds - known - Median(accumulate) - Median(update)) * 1e3,
      100 * (seconds - known - Median(accumulate) - Median(update)) / seconds);
  std::printf("%-26s %9.2f         %9.1f %8.0f%%\n", "step", seconds * 1e3,
              flops / seconds * 1e-9, 100 * flops / seconds / machine);
  std::printf(
      "{\"model\": \"%s\", \"family\": \"gpt2\", \"threads\": %d, "
      "\"parameters\": %lld, \"tokens_per_s\": %.1f, \"gflop_per_s\": %.1f, "
      "\"step_ms\": %.1f, \"optimizer_ms\": %.1f, \"peak_rss_mb\": %ld}\n",
      o.model.c_str(), o.threads,
      static_cast<long long>(bench.layout().parameter_count), tokens / seconds,
      rate, seconds * 1e3, Median(update) * 1e3, usage.ru_maxrss / 1024);
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  lockstep::Options o;
  CLI::App app(
      "Times a model's optimizer step, as a whole and, of a GPT-2, by kernel.");
  app.add_option("--model", o.model, "tiny, small or gpt2")
      ->check(CLI::IsMember({"tiny", "small", "gpt2"}))
      ->capture_default_str();
  app.add_option("--family", o.family,
                 "gpt2, or a llama with as many parameters a block")
      ->check(CLI::IsMember({"gpt2", "llama"}))
      ->capture_default_str();
  app.add_option("--precision", o.precision,
                 "Of the products with weights; by kernel, float32 only")
      ->check(CLI::IsMember({"float32", "bfloat16"}))
      ->capture_default_str();
  app.add_option("--threads", o.threads)->capture_default_str();
  app.add_option("--rows", o.rows, "Sequences of a micro-batch")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--micro_batches", o.micro_batches, "Of a step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--length", o.length, "Tokens of a sequence")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--steps", o.steps, "Timed steps")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--warmup", o.warmup, "Steps before")->capture_default_str();
  app.add_flag("--cpu_time", o.cpu_time,
               "Measure the process's CPU time: for one thread on a machine "
               "that others use too");
  CLI11_PARSE(app, argc, argv);
  if (o.cpu_time) lockstep::clock_id = CLOCK_PROCESS_CPUTIME_ID;
  lockstep::Run(o);
  return 0;
}
