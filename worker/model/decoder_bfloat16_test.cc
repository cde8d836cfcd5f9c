// What rounding to bfloat16 does to a loss, against a bound that is worked out:
// a GPT-2 in double precision, every value with how far it can be off.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "common/check.h"
#include "common/philox.h"
#include "kernels/device.h"
#include "worker/model/decoder.h"
#include "worker/model/whole_parameters.h"

namespace lockstep {
namespace {

// A value and a bound of its error.
struct Bounded {
  double value = 0;
  double error = 0;
};

Bounded operator+(Bounded a, Bounded b) {
  return {a.value + b.value, a.error + b.error};
}
Bounded operator-(Bounded a, Bounded b) {
  return {a.value - b.value, a.error + b.error};
}
Bounded operator*(Bounded a, Bounded b) {
  return {a.value * b.value, std::abs(a.value) * b.error +
                                 std::abs(b.value) * a.error +
                                 a.error * b.error};
}
// Of a function that only rises, or only falls: the worse end.
template <typename F>
Bounded Monotone(Bounded x, F f) {
  const double at = f(x.value);
  return {at, std::max(std::abs(f(x.value + x.error) - at),
                       std::abs(f(x.value - x.error) - at))};
}
Bounded Exp(Bounded x) {
  return Monotone(x, [](double v) { return std::exp(v); });
}
Bounded Log(Bounded x) {
  return Monotone(x, [](double v) { return std::log(v); });
}
Bounded InverseRoot(Bounded x) {
  return Monotone(x, [](double v) { return 1 / std::sqrt(v); });
}
Bounded Inverse(Bounded x) {
  return Monotone(x, [](double v) { return 1 / v; });
}
// Its slope is between -0.13 and 1.13.
Bounded Gelu(Bounded x) {
  const double inner = std::sqrt(2 / std::numbers::pi) *
                       (x.value + 0.044715 * x.value * x.value * x.value);
  return {0.5 * x.value * (1 + std::tanh(inner)), 1.13 * x.error};
}
// To bfloat16: by 2^-9 of the value at most.
Bounded Round(Bounded x) {
  return {x.value, x.error + 0x1p-9 * (std::abs(x.value) + x.error)};
}

using Vector = std::vector<Bounded>;

constexpr int kNoLayer = -1;

class BoundedGpt2 {
 public:
  BoundedGpt2(const ModelConfig& config, const std::vector<float>& parameters)
      : config_(config), layout_(MakeLayout(config)), parameters_(parameters) {}

  // Of the tokens' loss, summed.
  Bounded Loss(const std::vector<int32_t>& tokens) const {
    const int length = static_cast<int>(tokens.size()) - 1;
    const int width = static_cast<int>(config_.width);
    std::vector<Vector> x(length, Vector(width));
    for (int t = 0; t < length; ++t) {
      for (int i = 0; i < width; ++i) {
        x[t][i] =
            Weight(TensorRole::kTokenEmbedding, kNoLayer,
                   tokens[t] * width + i) +
            Weight(TensorRole::kPositionEmbedding, kNoLayer, t * width + i);
      }
    }
    for (int layer = 0; layer < config_.layer_count; ++layer) Block(layer, x);
    Bounded loss;
    for (int t = 0; t < length; ++t) {
      const Vector h = Norm(TensorRole::kFinalNormWeight,
                            TensorRole::kFinalNormBias, kNoLayer, x[t]);
      Bounded total;
      Bounded logit;
      for (int v = 0; v < config_.vocabulary; ++v) {
        Bounded sum;
        for (int i = 0; i < width; ++i) {
          sum = sum + Round(h[i]) * Round(Weight(TensorRole::kTokenEmbedding,
                                                 kNoLayer, v * width + i));
        }
        total = total + Exp(sum);
        if (v == tokens[t + 1]) logit = sum;
      }
      loss = loss + Log(total) - logit;
    }
    return loss;
  }

 private:
  Bounded Weight(TensorRole role, int layer, int64_t i) const {
    return {parameters_[layout_.tensors[layout_.Find(role, layer)].offset + i]};
  }

  Vector Norm(TensorRole weight, TensorRole bias, int layer,
              const Vector& x) const {
    const Bounded share{1.0 / static_cast<double>(x.size())};
    Bounded mean, variance{config_.norm_epsilon};
    for (const Bounded& v : x) mean = mean + v * share;
    Vector out;
    for (const Bounded& v : x) {
      out.push_back(v - mean);
      variance = variance + out.back() * out.back() * share;
    }
    const Bounded rstd = InverseRoot(variance);
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] =
          out[i] * rstd * Weight(weight, layer, i) + Weight(bias, layer, i);
    }
    return out;
  }

  Vector Product(TensorRole weight, TensorRole bias, int layer, const Vector& x,
                 int64_t out_width) const {
    Vector out;
    for (int64_t j = 0; j < out_width; ++j) {
      Bounded sum = Weight(bias, layer, j);
      for (size_t i = 0; i < x.size(); ++i) {
        sum =
            sum + Round(x[i]) * Round(Weight(weight, layer, i * out_width + j));
      }
      out.push_back(sum);
    }
    return out;
  }

  void Block(int layer, std::vector<Vector>& x) const {
    using R = TensorRole;
    const int width = static_cast<int>(config_.width);
    const int head_width = static_cast<int>(config_.head_width);
    std::vector<Vector> qkv;
    for (const Vector& row : x) {
      qkv.push_back(Product(R::kQkvWeight, R::kQkvBias, layer,
                            Norm(R::kNorm1Weight, R::kNorm1Bias, layer, row),
                            3 * width));
    }
    for (size_t t = 0; t < x.size(); ++t) {
      Vector attention(width);
      for (int head = 0; head < config_.head_count; ++head) {
        const int at = head * head_width;
        Vector exps;
        Bounded total;
        for (size_t s = 0; s <= t; ++s) {
          Bounded score;
          for (int i = at; i < at + head_width; ++i) {
            score = score + qkv[t][i] * qkv[s][width + i];
          }
          exps.push_back(Exp(score * Bounded{1 / std::sqrt(head_width)}));
          total = total + exps.back();
        }
        for (size_t s = 0; s <= t; ++s) {
          const Bounded p = exps[s] * Inverse(total);
          for (int i = at; i < at + head_width; ++i) {
            attention[i] = attention[i] + p * qkv[s][2 * width + i];
          }
        }
      }
      Add(x[t], Product(R::kAttentionOutWeight, R::kAttentionOutBias, layer,
                        attention, width));
      Vector inner = Product(R::kInnerWeight, R::kInnerBias, layer,
                             Norm(R::kNorm2Weight, R::kNorm2Bias, layer, x[t]),
                             config_.inner_width);
      for (Bounded& v : inner) v = Gelu(v);
      Add(x[t], Product(R::kOuterWeight, R::kOuterBias, layer, inner, width));
    }
  }

  static void Add(Vector& x, const Vector& part) {
    for (size_t i = 0; i < x.size(); ++i) x[i] = x[i] + part[i];
  }

  const ModelConfig config_;
  const Layout layout_;
  const std::vector<float>& parameters_;
};

// Adds contributions up.
class SummingSink : public GradientSink {
 public:
  explicit SummingSink(const Layout& layout)
      : layout_(layout), sum(layout.element_count) {}
  absl::Status Contribute(int tensor, const float* gradient) override {
    const Tensor& t = layout_.tensors[tensor];
    for (int64_t i = 0; i < t.element_count; ++i) {
      sum[t.offset + i] += gradient[i];
    }
    return absl::OkStatus();
  }
  absl::Status UnitDone(int) override { return absl::OkStatus(); }

 private:
  const Layout& layout_;

 public:
  std::vector<double> sum;
};

class DecoderBfloat16Test : public testing::Test {
 protected:
  void SetUp() override {
    device_ = kernels::CreateCpuDevice(1).value();
    if (!device_->has_bfloat16()) GTEST_SKIP() << "no AVX-512";
    config_.vocabulary = 17;
    config_.position_max = 6;
    config_.width = 16;
    config_.layer_count = 2;
    config_.SetPlainHeads(2);
    config_.inner_width = 32;
    layout_ = MakeLayout(config_);
    parameters_.resize(layout_.element_count);
    for (const Tensor& tensor : layout_.tensors) {
      const bool is_table = tensor.role == TensorRole::kTokenEmbedding ||
                            tensor.role == TensorRole::kPositionEmbedding;
      const bool is_norm_weight = tensor.role == TensorRole::kNorm1Weight ||
                                  tensor.role == TensorRole::kNorm2Weight ||
                                  tensor.role == TensorRole::kFinalNormWeight;
      for (int64_t i = 0; i < tensor.element_count; ++i) {
        const uint64_t at = tensor.offset + i;
        parameters_[at] = static_cast<float>(
            (is_table ? 0.5 : 0.02) * Normal(at) + (is_norm_weight ? 1 : 0));
      }
    }
    for (uint32_t i = 0; i < 7; ++i) {
      tokens_.push_back(static_cast<int32_t>(
          Philox4x32({i, 7, 0, 0}, {5, 6})[0] % config_.vocabulary));
    }
  }

  static double Normal(uint64_t i) {
    const PhiloxBlock block =
        Philox4x32({static_cast<uint32_t>(i), 0, 0, 0}, {3, 4});
    return std::sqrt(-2 * std::log(UniformFrom(block[0]))) *
           std::cos(2 * std::numbers::pi * UniformFrom(block[1]));
  }

  // Loss, and the gradient in `gradient`.
  double Run(Products products, std::vector<double>& gradient) {
    auto stream = device_->CreateStream().value();
    auto source = WholeParameters::Create(layout_, products, *stream).value();
    LS_CHECK(source->Set(parameters_.data()).ok());
    auto decoder = Decoder::Create(config_, layout_, 1, 6, *stream, *source,
                                   {.products = products})
                       .value();
    LS_CHECK(decoder->Forward(tokens_.data()).ok());
    SummingSink sink(layout_);
    const LossSum loss = decoder->Backward(sink).value();
    gradient = sink.sum;
    // The same without a backward.
    EXPECT_NEAR(decoder->Evaluate(tokens_.data(), 1).value().nats, loss.nats,
                1e-5);
    return loss.nats;
  }

  std::unique_ptr<kernels::Device> device_;
  ModelConfig config_;
  Layout layout_;
  std::vector<float> parameters_;
  std::vector<int32_t> tokens_;
};

TEST_F(DecoderBfloat16Test, TheLossIsOffByNoMoreThanItsRoundingsAllow) {
  std::vector<double> gradient;
  const double single = Run(Products::kFloat32, gradient);
  const double rounded = Run(Products::kBfloat16, gradient);
  const Bounded bound = BoundedGpt2(config_, parameters_).Loss(tokens_);

  // Six losses in float32, from a model this small.
  constexpr double kFloat32Error = 1e-5;
  EXPECT_NEAR(single, bound.value, kFloat32Error);
  EXPECT_LE(std::abs(rounded - bound.value), bound.error + kFloat32Error);
  // It was rounded; and the bound says something: a fifth of the loss at most.
  EXPECT_GT(std::abs(rounded - single), kFloat32Error);
  EXPECT_LT(bound.error, 0.2 * bound.value);
  RecordProperty("bound", std::to_string(bound.error));
  RecordProperty("error", std::to_string(std::abs(rounded - bound.value)));
}

// From a token to the loss and back a value meets 18 products (four a block and
// the head's, twice), each with two operands that are off by 2^-9 at most; were
// all of them off to the same side, a gradient would be by 36 x 2^-9 of itself.
// They are not, and what is left is well below; one wrong product would be far
// above.
TEST_F(DecoderBfloat16Test, GradientsAreOffByNoMoreThanTheirRoundings) {
  std::vector<double> single, rounded;
  Run(Products::kFloat32, single);
  Run(Products::kBfloat16, rounded);
  for (const Tensor& t : layout_.tensors) {
    double error = 0, size = 0;
    for (int64_t i = t.offset; i < t.offset + t.element_count; ++i) {
      error += (rounded[i] - single[i]) * (rounded[i] - single[i]);
      size += single[i] * single[i];
    }
    EXPECT_LE(std::sqrt(error), 36 * 0x1p-9 * std::sqrt(size)) << t.name;
    EXPECT_GT(error, 0) << t.name;
  }
}

}  // namespace
}  // namespace lockstep
