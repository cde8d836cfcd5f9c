#include "worker/model/decoder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/layout.h"
#include "common/model_config.h"
#include "common/philox.h"
#include "common/unit_calls.h"
#include "kernels/device.h"
#include "worker/model/whole_parameters.h"

namespace lockstep {
namespace {

ModelConfig SmallConfig() {
  ModelConfig config;
  config.vocabulary = 61;
  config.position_max = 40;
  config.width = 48;
  config.layer_count = 2;
  config.SetPlainHeads(3);
  config.inner_width = 100;
  return config;
}

// Heads that together are wider than the model, two of which share their keys.
ModelConfig SmallLlama() {
  ModelConfig config;
  config.family = ModelFamily::kLlama;
  config.vocabulary = 61;
  config.position_max = 40;
  config.width = 40;
  config.layer_count = 2;
  config.head_count = 4;
  config.key_value_head_count = 2;
  config.head_width = 14;
  config.inner_width = 70;
  config.rotary_base = 500;
  config.rotary_scaling = RotaryScaling{.original_position_max = 64};
  return config;
}

// As Qwen2 has them, and Llama with all of its own.
std::vector<ModelConfig> Llamas() {
  std::vector<ModelConfig> configs(4, SmallLlama());
  configs[1].tied_head = false;
  configs[2].family = ModelFamily::kQwen2;
  configs[2].qkv_bias = true;
  configs[2].rotary_scaling.reset();
  configs[3].qkv_bias = true;
  configs[3].attention_out_bias = true;
  configs[3].inner_bias = true;
  return configs;
}

// Copies every contribution, in the order it came.
class RecordingSource : public ParameterSource {
 public:
  explicit RecordingSource(ParameterSource& source) : source_(source) {}

  absl::StatusOr<Values> Acquire(int unit) override {
    calls.push_back({UnitCall::kAcquire, unit});
    return source_.Acquire(unit);
  }
  absl::Status Release(int unit) override {
    calls.push_back({UnitCall::kRelease, unit});
    return source_.Release(unit);
  }

  std::vector<UnitCall> calls;

 private:
  ParameterSource& source_;
};

class RecordingSink : public GradientSink {
 public:
  struct Contribution {
    int tensor;
    std::vector<float> gradient;
  };

  explicit RecordingSink(const Layout& layout) : layout_(layout) {}

  absl::Status Contribute(int tensor, const float* gradient) override {
    if (tensor == fail_at_tensor) return absl::AbortedError("as told");
    // Nothing may follow for a unit that was done.
    for (const int done : units) {
      EXPECT_NE(layout_.tensors[tensor].unit, done);
    }
    contributions.push_back(
        {tensor,
         std::vector<float>(gradient,
                            gradient + layout_.tensors[tensor].element_count)});
    return absl::OkStatus();
  }
  absl::Status UnitDone(int unit) override {
    if (calls != nullptr) calls->push_back({UnitCall::kDone, unit});
    units.push_back(unit);
    return absl::OkStatus();
  }

  // Sums of contributions, tensor by tensor.
  std::vector<double> Gradient(int tensor) const {
    std::vector<double> sum(layout_.tensors[tensor].element_count);
    for (const Contribution& c : contributions) {
      if (c.tensor != tensor) continue;
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += c.gradient[i];
    }
    return sum;
  }

  std::vector<Contribution> contributions;
  std::vector<int> units;
  std::vector<UnitCall>* calls = nullptr;
  int fail_at_tensor = -1;

 private:
  const Layout& layout_;
};

bool SameBits(const RecordingSink& a, const RecordingSink& b) {
  if (a.contributions.size() != b.contributions.size()) return false;
  for (size_t i = 0; i < a.contributions.size(); ++i) {
    const auto& x = a.contributions[i];
    const auto& y = b.contributions[i];
    if (x.tensor != y.tensor ||
        std::memcmp(x.gradient.data(), y.gradient.data(),
                    x.gradient.size() * sizeof(float)) != 0) {
      return false;
    }
  }
  return true;
}

// A decoder with random weights and tokens, all functions of the arguments.
class Model {
 public:
  Model(const ModelConfig& config, int64_t rows, int64_t sequence_length,
        int thread_count = 1, const DecoderOptions& options = {})
      : layout(MakeLayout(config)), rows_(rows), length_(sequence_length) {
    auto created_device = kernels::CreateCpuDevice(thread_count);
    LS_CHECK(created_device.ok());
    device_ = *std::move(created_device);
    auto created_stream = device_->CreateStream();
    LS_CHECK(created_stream.ok());
    stream_ = *std::move(created_stream);
    parameters.resize(layout.element_count);
    for (const Tensor& tensor : layout.tensors) {
      const bool is_norm_weight = tensor.role == TensorRole::kNorm1Weight ||
                                  tensor.role == TensorRole::kNorm2Weight ||
                                  tensor.role == TensorRole::kFinalNormWeight;
      for (int64_t i = 0; i < tensor.element_count; ++i) {
        parameters[tensor.offset + i] = static_cast<float>(
            0.2 * Normal(tensor.offset + i) + (is_norm_weight ? 1 : 0));
      }
    }
    tokens = RandomTokens(7, config.vocabulary);
    auto source = WholeParameters::Create(layout, options.products, *stream_);
    LS_CHECK(source.ok());
    source_ = *std::move(source);
    recorder = std::make_unique<RecordingSource>(*source_);
    auto created = Decoder::Create(config, layout, rows, sequence_length,
                                   *stream_, *recorder, options);
    LS_CHECK(created.ok());
    decoder = *std::move(created);
  }

  static double Normal(uint64_t i) {
    const PhiloxBlock block = Philox4x32(
        {static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), 0, 0},
        {3, 4});
    return std::sqrt(-2 * std::log(UniformFrom(block[0]))) *
           std::cos(2 * std::numbers::pi * UniformFrom(block[1]));
  }

  std::vector<int32_t> RandomTokens(uint32_t seed, int64_t vocabulary) const {
    std::vector<int32_t> random(rows_ * (length_ + 1));
    for (size_t i = 0; i < random.size(); ++i) {
      random[i] = static_cast<int32_t>(
          Philox4x32({static_cast<uint32_t>(i), seed, 0, 0}, {5, 6})[0] %
          vocabulary);
    }
    return random;
  }

  LossSum Step(RecordingSink& sink) {
    EXPECT_TRUE(Forward().ok());
    const auto loss = decoder->Backward(sink);
    EXPECT_TRUE(loss.ok()) << loss.status();
    return loss.ok() ? *loss : LossSum{};
  }

  // Of what `parameters` and `tokens` are now.
  absl::Status Forward() {
    EXPECT_TRUE(source_->Set(parameters.data()).ok());
    return decoder->Forward(tokens.data(), first_sample);
  }

  double TrainingLoss() {
    RecordingSink unused(layout);
    return Step(unused).nats;
  }

  LossSum Evaluate(int64_t row_count) {
    EXPECT_TRUE(source_->Set(parameters.data()).ok());
    const auto loss = decoder->Evaluate(tokens.data(), row_count);
    EXPECT_TRUE(loss.ok()) << loss.status();
    return loss.ok() ? *loss : LossSum{};
  }

  const Layout layout;
  std::vector<float> parameters;
  std::vector<int32_t> tokens;
  std::unique_ptr<RecordingSource> recorder;
  std::unique_ptr<Decoder> decoder;
  int64_t first_sample = 0;

 private:
  const int64_t rows_, length_;
  std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<kernels::Stream> stream_;
  std::unique_ptr<WholeParameters> source_;
};

// The slope of the loss along a random direction within each tensor, against
// the gradient's.
void ExpectGradientIsSlope(const ModelConfig& config, int64_t rows,
                           int64_t sequence_length,
                           const DecoderOptions& options = {}) {
  Model model(config, rows, sequence_length, 2, options);
  RecordingSink sink(model.layout);
  model.Step(sink);
  const std::vector<float> at = model.parameters;
  for (int t = 0; t < std::ssize(model.layout.tensors); ++t) {
    const Tensor& tensor = model.layout.tensors[t];
    const std::vector<double> gradient = sink.Gradient(t);
    double squares = 0;
    for (const double g : gradient) squares += g * g;
    // Along the gradient, bent by a random part as large, so that the slope is
    // neither zero nor the gradient's own size by construction.
    std::vector<double> direction(gradient.size());
    double slope = 0;
    const double size = std::sqrt(squares / gradient.size());
    for (size_t i = 0; i < direction.size(); ++i) {
      direction[i] = gradient[i] + size * Model::Normal(i + 1000 * t);
      slope += direction[i] * gradient[i];
    }
    // Slopes over a whole and a half step; their combination has no third-order
    // error.  The loss changes by 0.1 and more, and its float32 rounding, of up
    // to 1e-5 here, is then about 3e-4 of a slope.
    const auto slope_over = [&](double step) {
      double loss[2];
      for (const int side : {0, 1}) {
        for (size_t i = 0; i < direction.size(); ++i) {
          model.parameters[tensor.offset + i] =
              static_cast<float>(at[tensor.offset + i] +
                                 (side == 0 ? -step : step) * direction[i]);
        }
        loss[side] = options.dropout > 0 ? model.TrainingLoss()
                                         : model.Evaluate(rows).nats;
      }
      return (loss[1] - loss[0]) / (2 * step);
    };
    const double step = 0.1 / slope;
    const double measured = (4 * slope_over(step / 2) - slope_over(step)) / 3;
    std::copy(at.begin() + tensor.offset,
              at.begin() + tensor.offset + tensor.element_count,
              model.parameters.begin() + tensor.offset);
    EXPECT_NEAR(measured / slope, 1, 1e-3)
        << tensor.name << ", slope " << slope;
  }
}

TEST(DecoderTest, GradientIsTheSlopeOfTheLoss) {
  ExpectGradientIsSlope(SmallConfig(), 3, 37);
}

TEST(DecoderTest, GradientIsTheSlopeOfTheLossWithAnUntiedHead) {
  ModelConfig config = SmallConfig();
  config.tied_head = false;
  ExpectGradientIsSlope(config, 2, 20);
}

TEST(DecoderTest, GradientIsTheSlopeOfTheLossWithOneToken) {
  ExpectGradientIsSlope(SmallConfig(), 1, 1);
}

TEST(DecoderTest, GradientIsTheSlopeOfTheLossWithDropout) {
  const DecoderOptions options{.dropout = 0.2, .dropout_seed = 3};
  ExpectGradientIsSlope(SmallConfig(), 3, 37, options);
  ExpectGradientIsSlope(SmallLlama(), 3, 37, options);
}

// Two halves of a micro-batch drop what the whole one does.
TEST(DecoderTest, WhatIsDroppedIsAFunctionOfTheSample) {
  const DecoderOptions options{.dropout = 0.2, .dropout_seed = 3};
  for (const ModelConfig& config : {SmallConfig(), SmallLlama()}) {
    Model whole(config, 4, 20, 1, options);
    whole.first_sample = 100;
    const double loss = whole.TrainingLoss();
    double parts = 0;
    for (const int half : {0, 1}) {
      Model part(config, 2, 20, 2, options);
      part.first_sample = 100 + 2 * half;
      const auto begin = whole.tokens.begin() + half * 2 * 21;
      part.tokens.assign(begin, begin + 2 * 21);
      parts += part.TrainingLoss();
    }
    // Where a row stands may change a product's last bits; another mask changes
    // much more, as below.
    EXPECT_NEAR(parts, loss, 1e-4);
    whole.first_sample = 101;
    EXPECT_GT(std::abs(whole.TrainingLoss() - loss), 1e-3);
    Model other(config, 4, 20, 1, {.dropout = 0.2, .dropout_seed = 4});
    other.first_sample = 100;
    EXPECT_GT(std::abs(other.TrainingLoss() - loss), 1e-3);
    // Evaluation drops nothing.
    Model plain(config, 4, 20, 1);
    EXPECT_EQ(whole.Evaluate(4).nats, plain.Evaluate(4).nats);
  }
}

TEST(DecoderTest, RecomputingChangesMemoryAndNoBit) {
  std::vector<ModelConfig> configs = Llamas();
  configs.push_back(SmallConfig());
  for (ModelConfig config : configs) {
    config.layer_count = 4;
    Model plain(config, 3, 37, 2, {.dropout = 0.1});
    Model recomputing(config, 3, 37, 2,
                      {.recompute = Recompute::kBlock, .dropout = 0.1});
    EXPECT_LT(recomputing.decoder->byte_count(), plain.decoder->byte_count());
    for (int step = 0; step < 2; ++step) {
      RecordingSink expected(plain.layout), sink(plain.layout);
      EXPECT_EQ(recomputing.Step(sink).nats, plain.Step(expected).nats);
      EXPECT_TRUE(SameBits(sink, expected));
      EXPECT_EQ(recomputing.Evaluate(3).nats, plain.Evaluate(3).nats);
    }
  }
}

TEST(DecoderTest, OnlyTargetsThatCountAreTrainedOn) {
  const int64_t rows = 3, length = 20;
  Model model(SmallConfig(), rows, length, 2);
  RecordingSink all(model.layout);
  const LossSum whole = model.Step(all);
  EXPECT_EQ(whole.token_count, rows * length);

  // Two halves of the targets, which together are all.
  const std::vector<int32_t> plain = model.tokens;
  LossSum parts;
  std::vector<std::vector<double>> sums(model.layout.tensors.size());
  for (const int half : {0, 1}) {
    model.tokens = plain;
    for (size_t i = 0; i < plain.size(); ++i) {
      if (static_cast<int>(i % 2) == half) model.tokens[i] = ~plain[i];
    }
    RecordingSink sink(model.layout);
    const LossSum part = model.Step(sink);
    EXPECT_GT(part.token_count, rows * length / 3);
    EXPECT_EQ(model.Evaluate(rows).nats, part.nats);
    EXPECT_EQ(model.Evaluate(rows).token_count, part.token_count);
    parts.nats += part.nats;
    parts.token_count += part.token_count;
    for (int t = 0; t < std::ssize(sums); ++t) {
      const std::vector<double> gradient = sink.Gradient(t);
      sums[t].resize(gradient.size());
      for (size_t i = 0; i < gradient.size(); ++i) sums[t][i] += gradient[i];
    }
  }
  EXPECT_EQ(parts.token_count, whole.token_count);
  EXPECT_NEAR(parts.nats, whole.nats, 1e-9);
  for (int t = 0; t < std::ssize(sums); ++t) {
    const std::vector<double> gradient = all.Gradient(t);
    for (size_t i = 0; i < gradient.size(); ++i) {
      ASSERT_NEAR(sums[t][i], gradient[i], 2e-4)
          << model.layout.tensors[t].name;
    }
  }

  for (int32_t& token : model.tokens) token = token < 0 ? token : ~token;
  RecordingSink none(model.layout);
  const LossSum nothing = model.Step(none);
  EXPECT_EQ(nothing.token_count, 0);
  EXPECT_EQ(nothing.nats, 0);
  for (int t = 0; t < std::ssize(sums); ++t) {
    for (const double g : none.Gradient(t)) ASSERT_EQ(g, 0);
  }
}

TEST(DecoderTest, GradientIsTheSlopeOfTheLossOfLlamas) {
  for (const ModelConfig& config : Llamas()) {
    ExpectGradientIsSlope(config, 3, 37);
  }
}

TEST(DecoderTest, BitsOfLlamasDoNotDependOnThreads) {
  for (ModelConfig config : Llamas()) {
    config.width = 192;
    config.inner_width = 700;
    Model one(config, 5, 37, 1);
    RecordingSink expected(one.layout);
    const LossSum loss = one.Step(expected);
    const double evaluated = one.Evaluate(5).nats;
    for (const int threads : {2, 3}) {
      Model model(config, 5, 37, threads);
      RecordingSink sink(model.layout);
      EXPECT_EQ(model.Step(sink).nats, loss.nats);
      EXPECT_TRUE(SameBits(sink, expected));
      EXPECT_EQ(model.Evaluate(5).nats, evaluated);
    }
  }
}

TEST(DecoderTest, GradientIsTheSlopeOfTheLossOverSlicesOfTheHead) {
  // With so large a vocabulary 64 rows of logits are computed at a time.
  ModelConfig config = SmallConfig();
  config.vocabulary = 200'000;
  config.width = 6;
  config.SetPlainHeads(3);
  config.inner_width = 8;
  config.layer_count = 1;
  ExpectGradientIsSlope(config, 4, 37);
}

TEST(DecoderTest, BitsDoNotDependOnThreads) {
  for (const bool tied : {true, false}) {
    ModelConfig config = SmallConfig();
    config.tied_head = tied;
    config.width = 192;
    config.SetPlainHeads(3);
    config.inner_width = 700;
    Model one(config, 5, 37, 1);
    RecordingSink expected(one.layout);
    const LossSum loss = one.Step(expected);
    const double evaluated = one.Evaluate(5).nats;
    for (const int threads : {2, 3}) {
      Model model(config, 5, 37, threads);
      RecordingSink sink(model.layout);
      EXPECT_EQ(model.Step(sink).nats, loss.nats);
      EXPECT_TRUE(SameBits(sink, expected));
      EXPECT_EQ(model.Evaluate(5).nats, evaluated);
    }
  }
}

TEST(DecoderTest, BitsDoNotDependOnWhatRanBefore) {
  Model model(SmallConfig(), 3, 37, 2);
  RecordingSink expected(model.layout);
  const LossSum loss = model.Step(expected);
  const std::vector<int32_t> tokens = model.tokens;

  // Others, with an absurd weight so that everything overflows.
  std::swap(model.parameters[0],
            model.parameters[model.layout.element_count / 2]);
  model.parameters[5] = 3e38f;
  model.tokens = model.RandomTokens(8, 61);
  RecordingSink other(model.layout);
  model.Step(other);
  EXPECT_FALSE(SameBits(other, expected));
  model.Evaluate(2);
  Model fresh(SmallConfig(), 3, 37, 2);
  model.parameters = fresh.parameters;
  model.tokens = tokens;

  RecordingSink again(model.layout);
  EXPECT_EQ(model.Step(again).nats, loss.nats);
  EXPECT_TRUE(SameBits(again, expected));
}

TEST(DecoderTest, EvaluateBetweenForwardAndBackwardChangesNothing) {
  Model model(SmallConfig(), 3, 37);
  RecordingSink expected(model.layout);
  const LossSum loss = model.Step(expected);
  ASSERT_TRUE(model.Forward().ok());
  const std::vector<int32_t> zeros(3 * 38);
  ASSERT_TRUE(model.decoder->Evaluate(zeros.data(), 3).ok());
  std::vector<float> logits(61);
  ASSERT_TRUE(model.decoder->Logits(zeros.data(), 36, logits.data()).ok());

  RecordingSink sink(model.layout);
  const auto after = model.decoder->Backward(sink);

  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(after->nats, loss.nats);
  EXPECT_TRUE(SameBits(sink, expected));
}

TEST(DecoderTest, EvaluateGivesTheLossOfBackward) {
  Model model(SmallConfig(), 3, 37);
  RecordingSink sink(model.layout);
  const LossSum loss = model.Step(sink);

  EXPECT_EQ(loss.token_count, 3 * 37);
  const LossSum evaluated = model.Evaluate(3);
  EXPECT_EQ(evaluated.nats, loss.nats);
  EXPECT_EQ(evaluated.token_count, 3 * 37);
}

TEST(DecoderTest, EvaluateCountsTheFirstRowsOnly) {
  Model model(SmallConfig(), 3, 37);
  const LossSum two = model.Evaluate(2);
  const LossSum all = model.Evaluate(3);
  EXPECT_EQ(two.token_count, 2 * 37);
  EXPECT_LT(two.nats, all.nats);

  // What follows the first rows is not even looked at.
  std::fill(model.tokens.begin() + 2 * 38, model.tokens.end(), -1);
  EXPECT_EQ(model.Evaluate(2).nats, two.nats);
  const LossSum none = model.Evaluate(0);
  EXPECT_EQ(none.nats, 0);
  EXPECT_EQ(none.token_count, 0);
}

TEST(DecoderTest, LogitsAreThoseBehindTheLoss) {
  Model model(SmallConfig(), 1, 37);
  const double nats = model.Evaluate(1).nats;
  double sum = 0;
  for (int64_t t = 0; t < 37; ++t) {
    std::vector<float> logits(61);
    ASSERT_TRUE(
        model.decoder->Logits(model.tokens.data(), t, logits.data()).ok());
    double total = 0;
    for (const float logit : logits) total += std::exp(double{logit});
    sum += std::log(total) - logits[model.tokens[t + 1]];
  }
  // 37 losses of a few nats, each within some units of 2^-24.
  EXPECT_NEAR(sum, nats, 1e-4);
}

TEST(DecoderTest, EachTensorContributesOnceAndATiedEmbeddingTwice) {
  for (const bool tied : {true, false}) {
    ModelConfig config = SmallConfig();
    config.tied_head = tied;
    Model model(config, 2, 5);
    RecordingSink sink(model.layout);
    model.Step(sink);

    std::vector<int> counts(model.layout.tensors.size());
    for (const auto& c : sink.contributions) ++counts[c.tensor];
    const int embedding = model.layout.Find(TensorRole::kTokenEmbedding);
    for (int t = 0; t < std::ssize(counts); ++t) {
      EXPECT_EQ(counts[t], tied && t == embedding ? 2 : 1)
          << model.layout.tensors[t].name;
    }
    EXPECT_EQ(sink.units, (std::vector<int>{3, 2, 1, 0}));
    if (tied) {
      EXPECT_EQ(sink.contributions.front().tensor, embedding);
    }
  }
}

TEST(DecoderTest, TheSinksErrorIsPassedOn) {
  Model model(SmallConfig(), 2, 5);
  for (int t = 0; t < std::ssize(model.layout.tensors); ++t) {
    RecordingSink sink(model.layout);
    sink.fail_at_tensor = t;
    ASSERT_TRUE(model.Forward().ok());

    EXPECT_EQ(model.decoder->Backward(sink).status().code(),
              absl::StatusCode::kAborted);
  }
}

TEST(DecoderTest, ANanIsNotHidden) {
  Model model(SmallConfig(), 2, 5);
  const std::vector<float> right = model.parameters;
  // In a bias of the last block, of the first, and in one token's embedding.
  for (const int t : {model.layout.Find(TensorRole::kOuterBias, 1),
                      model.layout.Find(TensorRole::kQkvBias, 0),
                      model.layout.Find(TensorRole::kInnerBias, 0),
                      model.layout.Find(TensorRole::kNorm1Bias, 1)}) {
    model.parameters = right;
    model.parameters[model.layout.tensors[t].offset + 3] =
        std::numeric_limits<float>::quiet_NaN();
    RecordingSink sink(model.layout);

    EXPECT_TRUE(std::isnan(model.Step(sink).nats))
        << model.layout.tensors[t].name;
    EXPECT_TRUE(std::isnan(model.Evaluate(2).nats));
    bool seen = false;
    for (const float g : sink.contributions.front().gradient) {
      seen = seen || std::isnan(g);
    }
    EXPECT_TRUE(seen);
  }
}

TEST(DecoderTest, WrongInputIsRefusedWithItsPlace) {
  Model model(SmallConfig(), 2, 5);
  model.tokens[6 + 4] = 61;
  const absl::Status forward = model.Forward();
  EXPECT_EQ(forward.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(forward.message().find("token 61 at row 1, position 4"),
            absl::string_view::npos)
      << forward;

  RecordingSink sink(model.layout);
  EXPECT_EQ(model.decoder->Backward(sink).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(model.decoder->Evaluate(model.tokens.data(), 3).status().code(),
            absl::StatusCode::kInvalidArgument);
  std::vector<float> logits(61);
  EXPECT_EQ(model.decoder->Logits(model.tokens.data(), 5, logits.data()).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(DecoderTest, WithoutParametersNothingRuns) {
  Model model(SmallConfig(), 2, 5);

  EXPECT_EQ(model.decoder->Forward(model.tokens.data()).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(model.decoder->Evaluate(model.tokens.data(), 2).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

// Ranks without a micro-batch make the same calls without a decoder.
TEST(DecoderTest, UnitsAreAskedForInTheirOrder) {
  for (const bool gpt2 : {true, false}) {
    for (const bool tied : {true, false}) {
      for (const Recompute recompute : {Recompute::kNone, Recompute::kBlock}) {
        ModelConfig config = gpt2 ? SmallConfig() : SmallLlama();
        config.tied_head = tied;
        Model model(config, 2, 5, 1, {.recompute = recompute});
        RecordingSink sink(model.layout);
        sink.calls = &model.recorder->calls;

        model.Step(sink);
        EXPECT_EQ(model.recorder->calls, CallsOfMicroBatch(model.layout, tied));

        model.recorder->calls.clear();
        model.Evaluate(1);
        EXPECT_EQ(model.recorder->calls, CallsOfEvaluation(model.layout, tied));

        model.recorder->calls.clear();
        std::vector<float> logits(config.vocabulary);
        ASSERT_TRUE(
            model.decoder->Logits(model.tokens.data(), 2, logits.data()).ok());
        EXPECT_EQ(model.recorder->calls, CallsOfEvaluation(model.layout, tied));
      }
    }
  }
}

TEST(DecoderTest, WrongShapesAreRefusedByName) {
  auto device = kernels::CreateCpuDevice(1);
  ASSERT_TRUE(device.ok());
  auto stream = (*device)->CreateStream();
  ASSERT_TRUE(stream.ok());
  const ModelConfig config = SmallConfig();
  const Layout layout = MakeLayout(config);
  struct Case {
    int64_t rows, sequence_length;
    const char* name;
  };
  for (const Case& c :
       {Case{0, 5, "micro_batch_size=0"}, Case{1, 0, "sequence_length=0"},
        Case{1, 41, "longest, 40"}}) {
    const auto source =
        WholeParameters::Create(layout, Products::kFloat32, **stream);
    ASSERT_TRUE(source.ok());
    const auto decoder = Decoder::Create(config, layout, c.rows,
                                         c.sequence_length, **stream, **source);
    EXPECT_EQ(decoder.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(decoder.status().message().find(c.name), absl::string_view::npos)
        << decoder.status();
  }
}

TEST(DecoderTest, TooLargeAMicroBatchIsRefusedAtOnce) {
  auto device = kernels::CreateCpuDevice(1);
  ASSERT_TRUE(device.ok());
  auto stream = (*device)->CreateStream();
  ASSERT_TRUE(stream.ok());
  ModelConfig config = SmallConfig();
  config.width = 3000;
  config.SetPlainHeads(3);
  config.inner_width = 12000;
  config.position_max = 100'000;

  const Layout layout = MakeLayout(config);
  const auto source =
      WholeParameters::Create(layout, Products::kFloat32, **stream);
  ASSERT_TRUE(source.ok());
  const auto decoder =
      Decoder::Create(config, layout, 60'000, 100'000, **stream, **source);

  EXPECT_EQ(decoder.status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace lockstep
