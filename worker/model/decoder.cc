#include "worker/model/decoder.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/philox.h"
#include "common/status.h"
#include "kernels/attention.h"
#include "kernels/bfloat16.h"
#include "kernels/column_sums.h"
#include "kernels/cross_entropy.h"
#include "kernels/dropout.h"
#include "kernels/embedding.h"
#include "kernels/gelu.h"
#include "kernels/layer_norm.h"
#include "kernels/matmul.h"
#include "kernels/rms_norm.h"
#include "kernels/rotary.h"
#include "kernels/swiglu.h"
#include "worker/model/decoder_buffers.h"
#include "worker/model/rotary_table.h"

namespace lockstep {
namespace {

using kernels::Bfloat16;
using kernels::MatMul;
using kernels::MatMulOptions;

// A norm's; indices into Layout::tensors, -1 where there is none.
struct NormTensors {
  int weight = -1;
  int bias = -1;
};

// A product with a weight, and a bias where there is one.
struct Linear {
  int weight = -1;
  int bias = -1;
  bool out_by_in = false;  // How the weight is stored; else in x out.
  int64_t in_width = 0;
  int64_t out_width = 0;
  // Where its result begins in a row that several products of one input share.
  int64_t column = 0;
};

struct BlockTensors {
  NormTensors norm1, norm2;
  std::vector<Linear> qkv;  // One, or query, key and value.
  Linear attention_out;
  std::vector<Linear> inner;  // One, or gate and up.
  Linear outer;
};

// Rows of one run, at most those the buffers are for.
struct Extent {
  int64_t rows = 0;
  int64_t sequence_length = 0;
  int64_t tokens() const { return rows * sequence_length; }
};

class TransformerDecoder : public Decoder {
 public:
  TransformerDecoder(const ModelConfig& config, const Layout& layout,
                     Extent extent, const DecoderOptions& options,
                     kernels::Stream& stream, ParameterSource& parameters,
                     std::unique_ptr<DecoderBuffers> buffers)
      : config_(config),
        layout_(layout),
        extent_(extent),
        options_(options),
        stream_(stream),
        parameters_(parameters),
        held_(layout.units.size()),
        buffers_(std::move(buffers)),
        host_tokens_(extent.tokens()),
        host_targets_(extent.tokens()),
        host_losses_(extent.tokens()) {
    using R = TensorRole;
    for (int i = 0; i < config.layer_count; ++i) {
      BlockTensors block;
      block.norm1 = {layout_.Find(R::kNorm1Weight, i),
                     layout_.Find(R::kNorm1Bias, i)};
      block.norm2 = {layout_.Find(R::kNorm2Weight, i),
                     layout_.Find(R::kNorm2Bias, i)};
      if (config.is_gpt2()) {
        block.qkv = {MakeLinear(R::kQkvWeight, R::kQkvBias, i)};
        block.inner = {MakeLinear(R::kInnerWeight, R::kInnerBias, i)};
      } else {
        block.qkv =
            BesideEachOther({MakeLinear(R::kQueryWeight, R::kQueryBias, i),
                             MakeLinear(R::kKeyWeight, R::kKeyBias, i),
                             MakeLinear(R::kValueWeight, R::kValueBias, i)});
        block.inner =
            BesideEachOther({MakeLinear(R::kGateWeight, R::kGateBias, i),
                             MakeLinear(R::kInnerWeight, R::kInnerBias, i)});
      }
      block.attention_out =
          MakeLinear(R::kAttentionOutWeight, R::kAttentionOutBias, i);
      block.outer = MakeLinear(R::kOuterWeight, R::kOuterBias, i);
      blocks_.push_back(std::move(block));
    }
    token_embedding_ = layout_.Find(R::kTokenEmbedding);
    position_embedding_ = layout_.Find(R::kPositionEmbedding);
    final_norm_ = {layout_.Find(R::kFinalNormWeight),
                   layout_.Find(R::kFinalNormBias)};
    head_ = config.tied_head ? token_embedding_ : layout_.Find(R::kHeadWeight);
  }

  // Fills the tables of rotary positions.  Once, first.
  absl::Status Prepare();

  int64_t byte_count() const override { return buffers_->byte_count(); }
  absl::Status Forward(const int32_t* tokens, int64_t first_sample) override;
  absl::StatusOr<LossSum> Backward(GradientSink& sink) override;
  absl::StatusOr<LossSum> Evaluate(const int32_t* tokens,
                                   int64_t row_count) override;
  absl::Status Logits(const int32_t* tokens, int64_t position,
                      float* logits) override;

 private:
  using Layer = uint32_t;

  // Where elements are dropped; part of the bits: never renumber.
  enum class Place : uint32_t {
    kEmbedding = 1,
    kProbabilities = 2,
    kAttentionOut = 3,
    kFeedForwardOut = 4,
  };

  bool DropsResidual() const {
    return options_.dropout > 0 && config_.is_gpt2();
  }
  // Of the last Forward's samples.
  kernels::DropoutMask MaskOf(Place place, Layer layer) const {
    return {.seed = options_.dropout_seed,
            .site = static_cast<uint32_t>(RandomPurpose::kDropout) +
                    256 * static_cast<uint32_t>(place) + 65536 * layer,
            .first_sample = first_sample_,
            .rate = options_.dropout};
  }
  // out = residual + x after dropout; (tokens, width) each.
  absl::Status DropOut(Place place, Layer layer, const float* x,
                       const float* residual, float* out) {
    return kernels::Dropout(stream_, MaskOf(place, layer), x, residual,
                            extent_.rows,
                            extent_.sequence_length * config_.width, out);
  }

  Linear MakeLinear(TensorRole weight, TensorRole bias, int layer) const;
  static std::vector<Linear> BesideEachOther(std::vector<Linear> parts);

  // Splits (rows, sequence_length + 1) tokens into inputs and targets, checks
  // them, copies them to the device, and counts the targets that count.
  absl::Status CopyTokens(const int32_t* tokens, int64_t rows,
                          int32_t* device_tokens, int32_t* device_targets,
                          int64_t* counted);
  absl::Status CheckToken(int32_t token, int64_t row, int64_t position) const;

  absl::Status Embed(const Extent& extent, const int32_t* tokens, float* out);
  // With a layer dropout is applied, if there is any.
  absl::Status ForwardBlock(const Extent& extent, const BlockTensors& tensors,
                            const BlockActivations& activations,
                            std::optional<Layer> layer);
  // Embedding and blocks over the evaluation's memory; the result is in
  // buffers_->evaluation.norm1, normalised.  The head is acquired then.
  absl::Status ForwardForEvaluation(const Extent& extent);

  // The final norm and the weight, wherever that is.
  absl::Status AcquireHead();
  absl::Status ReleaseHead();
  absl::Status BackwardHead(GradientSink& sink);
  absl::Status BackwardBlock(const BlockTensors& tensors,
                             const BlockActivations& activations, Layer layer,
                             GradientSink& sink);
  // The gradient of what a part of a block adds to the residual stream, given
  // residual_gradient, and its bias's to the sink.
  absl::StatusOr<const float*> BackwardAddition(const Linear& linear,
                                                Place place, Layer layer,
                                                GradientSink& sink);
  absl::Status BackwardEmbedding(GradientSink& sink);

  bool RoundsOperands() const {
    return options_.products == Products::kBfloat16;
  }

  absl::Status Acquire(int unit) {
    ASSIGN_OR_RETURN(held_[unit], parameters_.Acquire(unit));
    return absl::OkStatus();
  }
  absl::Status Release(int unit) {
    held_[unit] = {};
    return parameters_.Release(unit);
  }
  int BlockUnit(size_t layer) const {
    return layout_.tensors[blocks_[layer].norm1.weight].unit;
  }
  int EmbeddingUnit() const { return layout_.tensors[token_embedding_].unit; }
  int HeadUnit() const { return layout_.tensors[final_norm_.weight].unit; }
  // Where the head's weight is, which a tied one shares with the embedding.
  int HeadWeightUnit() const { return layout_.tensors[head_].unit; }

  // Where a tensor of a unit that is acquired begins.
  template <typename T>
  const T* WeightAt(int tensor) const {
    const Tensor& t = layout_.tensors[tensor];
    const T* unit;
    if constexpr (std::is_same_v<T, Bfloat16>) {
      unit = held_[t.unit].rounded;
    } else {
      unit = held_[t.unit].values;
    }
    LS_CHECK(unit != nullptr);
    return unit + (t.offset - layout_.units[t.unit].range.offset);
  }
  const float* At(int tensor) const { return WeightAt<float>(tensor); }

  // Makes `operand` ready for products, once its data (tokens, width) is there.
  absl::Status Round(const Extent& extent, const Operand& operand,
                     int64_t width) {
    if (!RoundsOperands()) return absl::OkStatus();
    return kernels::RoundToBfloat16(stream_, operand.data, operand.stride,
                                    extent.tokens(), width, operand.rounded);
  }

  // out = in x weight + residual + bias; residual (out's form) may be null, and
  // the bias is left out without `with_bias`.
  absl::Status Product(const Extent& extent, const Linear& linear,
                       const Operand& in, float* out, int64_t out_stride,
                       const float* residual = nullptr, bool with_bias = true);
  absl::Status Norm(const Extent& extent, const NormTensors& norm,
                    const float* in, float* out,
                    const NormStatistics& statistics);
  absl::Status RotateHeads(const Extent& extent,
                           kernels::RotaryDirection direction, float* qkv);

  // Of products that share their input and whose results stand beside each
  // other: hands the weights' gradients to the sink, and writes the input's
  // (tokens, in_width), which overlaps none of the others.
  absl::Status BackwardProducts(const std::vector<Linear>& parts,
                                const Operand& in, const float* out_gradient,
                                int64_t out_stride, float* in_gradient,
                                GradientSink& sink);
  template <typename T>
  absl::Status BackwardProducts(const std::vector<Linear>& parts, const T* in,
                                int64_t in_stride, const T* out_gradient,
                                int64_t out_stride, float* in_gradient,
                                GradientSink& sink);

  // Logits of `count` rows of `in`, from `begin` on.
  absl::Status HeadProduct(const Operand& in, int64_t begin, int64_t count);
  // The gradients of the rows, and of the head's weight, given b.logits, that
  // of the logits; the weight's is added to from the second slice on.
  absl::Status BackwardHeadProducts(int64_t begin, int64_t count);
  template <typename T>
  absl::Status BackwardHeadProducts(const T* in, const T* logits_gradient,
                                    int64_t begin, int64_t count);
  // Hands the gradients of their biases to the sink: column sums of
  // out_gradient, (tokens, out_stride).
  absl::Status BackwardBiases(const std::vector<Linear>& parts,
                              const float* out_gradient, int64_t out_stride,
                              GradientSink& sink);
  // Of a norm of the residual stream: adds to residual_gradient from
  // narrow_gradient, hands the norm's gradients to the sink, and leaves the
  // column sums of the new residual_gradient in vector_gradients[2].
  absl::Status BackwardNorm(const NormTensors& norm, const float* in,
                            const NormStatistics& statistics, bool first,
                            GradientSink& sink);

  // Of `count` tokens, of which `counted` count.
  absl::StatusOr<LossSum> SumLosses(int64_t count, int64_t counted);

  kernels::AttentionShape AttentionShapeOf(const Extent& extent) const {
    return {.row_count = extent.rows,
            .sequence_length = extent.sequence_length,
            .head_count = config_.head_count,
            .key_value_head_count = config_.key_value_head_count,
            .head_width = config_.head_width};
  }

  const ModelConfig config_;
  const Layout layout_;
  const Extent extent_;
  const DecoderOptions options_;
  kernels::Stream& stream_;
  ParameterSource& parameters_;
  std::vector<ParameterSource::Values> held_;  // Of units that are acquired.
  const std::unique_ptr<DecoderBuffers> buffers_;

  std::vector<BlockTensors> blocks_;
  int token_embedding_ = -1;
  int position_embedding_ = -1;
  NormTensors final_norm_;
  int head_ = -1;

  std::vector<int32_t> host_tokens_, host_targets_;
  std::vector<float> host_losses_;
  int64_t counted_ = 0;  // Of the last Forward's targets.
  int64_t first_sample_ = 0;
  bool has_forward_ = false;  // That Backward can be of.
};

Linear TransformerDecoder::MakeLinear(TensorRole weight, TensorRole bias,
                                      int layer) const {
  Linear linear;
  linear.weight = layout_.Find(weight, layer);
  linear.bias = layout_.Find(bias, layer);
  linear.out_by_in = !config_.is_gpt2();
  const std::vector<int64_t>& shape = layout_.tensors[linear.weight].shape;
  linear.in_width = shape[linear.out_by_in ? 1 : 0];
  linear.out_width = shape[linear.out_by_in ? 0 : 1];
  return linear;
}

std::vector<Linear> TransformerDecoder::BesideEachOther(
    std::vector<Linear> parts) {
  int64_t column = 0;
  for (Linear& part : parts) {
    part.column = column;
    column += part.out_width;
  }
  return parts;
}

absl::Status TransformerDecoder::Prepare() {
  if (config_.is_gpt2()) return absl::OkStatus();
  const RotaryTable table = MakeRotaryTable(config_, extent_.sequence_length);
  const auto bytes = static_cast<int64_t>(table.cosine.size() * sizeof(float));
  RETURN_IF_ERROR(
      stream_.CopyToDevice(buffers_->cosine, table.cosine.data(), bytes));
  RETURN_IF_ERROR(
      stream_.CopyToDevice(buffers_->sine, table.sine.data(), bytes));
  return stream_.Synchronize();
}

absl::Status TransformerDecoder::CheckToken(int32_t token, int64_t row,
                                            int64_t position) const {
  if (token >= 0 && token < config_.vocabulary) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "token ", token, " at row ", row, ", position ", position,
      ": expected 0 to ", config_.vocabulary - 1,
      ", the model's vocabulary; was the data made with another tokenizer?"));
}

absl::Status TransformerDecoder::CopyTokens(const int32_t* tokens, int64_t rows,
                                            int32_t* device_tokens,
                                            int32_t* device_targets,
                                            int64_t* counted) {
  const int64_t length = extent_.sequence_length;
  *counted = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const int32_t* const from = tokens + row * (length + 1);
    for (int64_t t = 0; t <= length; ++t) {
      const int32_t token = from[t] < 0 ? ~from[t] : from[t];
      RETURN_IF_ERROR(CheckToken(token, row, t));
      if (t < length) host_tokens_[row * length + t] = token;
      if (t == 0) continue;
      const bool counts = from[t] >= 0;
      host_targets_[row * length + t - 1] = counts ? token : -1;
      *counted += counts ? 1 : 0;
    }
  }
  const int64_t bytes = rows * length * static_cast<int64_t>(sizeof(int32_t));
  RETURN_IF_ERROR(
      stream_.CopyToDevice(device_tokens, host_tokens_.data(), bytes));
  RETURN_IF_ERROR(
      stream_.CopyToDevice(device_targets, host_targets_.data(), bytes));
  // The host's copy is written again by the next call.
  return stream_.Synchronize();
}

absl::Status TransformerDecoder::Embed(const Extent& extent,
                                       const int32_t* tokens, float* out) {
  return kernels::EmbeddingForward(
      stream_, tokens, At(token_embedding_),
      position_embedding_ < 0 ? nullptr : At(position_embedding_), extent.rows,
      extent.sequence_length, config_.width, out);
}

absl::Status TransformerDecoder::Product(
    const Extent& extent, const Linear& linear, const Operand& in, float* out,
    int64_t out_stride, const float* residual, bool with_bias) {
  const int64_t stride = linear.out_by_in ? linear.in_width : linear.out_width;
  const MatMulOptions options{
      .residual = residual,
      .bias = with_bias && linear.bias >= 0 ? At(linear.bias) : nullptr};
  const auto multiply = [&]<typename T>(const T* data, int64_t data_stride) {
    return MatMul(stream_, extent.tokens(), linear.out_width, linear.in_width,
                  {data, data_stride},
                  {WeightAt<T>(linear.weight), stride, linear.out_by_in},
                  out + linear.column, out_stride, options);
  };
  return RoundsOperands()
             ? multiply(const_cast<const Bfloat16*>(in.rounded),
                        linear.in_width)
             : multiply(const_cast<const float*>(in.data), in.stride);
}

absl::Status TransformerDecoder::Norm(const Extent& extent,
                                      const NormTensors& norm, const float* in,
                                      float* out,
                                      const NormStatistics& statistics) {
  if (config_.is_gpt2()) {
    return kernels::LayerNormForward(stream_, in, At(norm.weight),
                                     At(norm.bias), extent.tokens(),
                                     config_.width, config_.norm_epsilon, out,
                                     statistics.mean, statistics.rstd);
  }
  return kernels::RmsNormForward(stream_, in, At(norm.weight), extent.tokens(),
                                 config_.width, config_.norm_epsilon, out,
                                 statistics.rstd);
}

absl::Status TransformerDecoder::RotateHeads(const Extent& extent,
                                             kernels::RotaryDirection direction,
                                             float* qkv) {
  if (config_.is_gpt2()) return absl::OkStatus();
  // Queries and keys, which stand first.
  const kernels::RotaryShape shape{
      .row_count = extent.rows,
      .sequence_length = extent.sequence_length,
      .head_count = config_.head_count + config_.key_value_head_count,
      .head_width = config_.head_width,
      .stride = config_.qkv_width()};
  return kernels::Rotate(stream_, shape, direction, buffers_->cosine,
                         buffers_->sine, qkv);
}

absl::Status TransformerDecoder::ForwardBlock(const Extent& extent,
                                              const BlockTensors& tensors,
                                              const BlockActivations& a,
                                              std::optional<Layer> layer) {
  const bool drops_residual = layer.has_value() && DropsResidual();
  kernels::DropoutMask mask;
  const bool drops = layer.has_value() && options_.dropout > 0;
  if (drops) mask = MaskOf(Place::kProbabilities, *layer);
  const int64_t n = extent.tokens();
  const int64_t width = config_.width;
  const int64_t inner_width = config_.inner_width;
  const int64_t inner_columns = config_.inner_columns();
  RETURN_IF_ERROR(
      Norm(extent, tensors.norm1, a.in, a.norm1.data, a.norm1_statistics));
  RETURN_IF_ERROR(Round(extent, a.norm1, width));
  for (const Linear& part : tensors.qkv) {
    RETURN_IF_ERROR(Product(extent, part, a.norm1, a.qkv, config_.qkv_width()));
  }
  RETURN_IF_ERROR(
      RotateHeads(extent, kernels::RotaryDirection::kForward, a.qkv));
  RETURN_IF_ERROR(kernels::AttentionForward(
      stream_, AttentionShapeOf(extent), a.qkv, a.attention.data, a.log_sum_exp,
      buffers_->workspace, drops ? &mask : nullptr));
  RETURN_IF_ERROR(Round(extent, a.attention, config_.query_width()));
  RETURN_IF_ERROR(Product(extent, tensors.attention_out, a.attention, a.middle,
                          width, drops_residual ? nullptr : a.in));
  if (drops_residual) {
    RETURN_IF_ERROR(
        DropOut(Place::kAttentionOut, *layer, a.middle, a.in, a.middle));
  }
  RETURN_IF_ERROR(
      Norm(extent, tensors.norm2, a.middle, a.norm2.data, a.norm2_statistics));
  RETURN_IF_ERROR(Round(extent, a.norm2, width));
  for (const Linear& part : tensors.inner) {
    // GELU adds the bias itself.
    RETURN_IF_ERROR(Product(extent, part, a.norm2, a.inner, inner_columns,
                            nullptr, !config_.is_gpt2()));
  }
  if (config_.is_gpt2()) {
    RETURN_IF_ERROR(kernels::BiasGeluForward(stream_, a.inner,
                                             At(tensors.inner.front().bias), n,
                                             inner_width, a.activated.data));
  } else {
    RETURN_IF_ERROR(kernels::SwiGluForward(stream_, a.inner, n, inner_width,
                                           a.activated.data,
                                           a.activated.stride));
  }
  RETURN_IF_ERROR(Round(extent, a.activated, inner_width));
  RETURN_IF_ERROR(Product(extent, tensors.outer, a.activated, a.out, width,
                          drops_residual ? nullptr : a.middle));
  if (!drops_residual) return absl::OkStatus();
  return DropOut(Place::kFeedForwardOut, *layer, a.out, a.middle, a.out);
}

absl::Status TransformerDecoder::Forward(const int32_t* tokens,
                                         int64_t first_sample) {
  DecoderBuffers& b = *buffers_;
  has_forward_ = false;
  RETURN_IF_ERROR(
      CopyTokens(tokens, extent_.rows, b.tokens, b.targets, &counted_));
  first_sample_ = first_sample;
  float* const embedded = b.blocks.front().in;
  RETURN_IF_ERROR(Acquire(EmbeddingUnit()));
  RETURN_IF_ERROR(Embed(extent_, b.tokens, embedded));
  RETURN_IF_ERROR(Release(EmbeddingUnit()));
  if (DropsResidual()) {
    RETURN_IF_ERROR(DropOut(Place::kEmbedding, 0, embedded, nullptr, embedded));
  }
  for (size_t i = 0; i < blocks_.size(); ++i) {
    RETURN_IF_ERROR(Acquire(BlockUnit(i)));
    RETURN_IF_ERROR(ForwardBlock(extent_, blocks_[i], b.blocks[i], Layer(i)));
    RETURN_IF_ERROR(Release(BlockUnit(i)));
  }
  RETURN_IF_ERROR(Acquire(HeadUnit()));
  RETURN_IF_ERROR(Norm(extent_, final_norm_, b.blocks.back().out,
                       b.final_norm.data, b.final_statistics));
  RETURN_IF_ERROR(Release(HeadUnit()));
  RETURN_IF_ERROR(Round(extent_, b.final_norm, config_.width));
  has_forward_ = true;
  return absl::OkStatus();
}

template <typename T>
absl::Status TransformerDecoder::BackwardProducts(
    const std::vector<Linear>& parts, const T* in, int64_t in_stride,
    const T* out_gradient, int64_t out_stride, float* in_gradient,
    GradientSink& sink) {
  const int64_t n = extent_.tokens();
  for (size_t i = 0; i < parts.size(); ++i) {
    const Linear& part = parts[i];
    const T* const gradient = out_gradient + part.column;
    float* const weight_gradient = buffers_->tensor_gradient;
    if (part.out_by_in) {
      RETURN_IF_ERROR(MatMul(stream_, part.out_width, part.in_width, n,
                             {gradient, out_stride, /*transposed=*/true},
                             {in, in_stride}, weight_gradient, part.in_width));
    } else {
      RETURN_IF_ERROR(MatMul(stream_, part.in_width, part.out_width, n,
                             {in, in_stride, /*transposed=*/true},
                             {gradient, out_stride}, weight_gradient,
                             part.out_width));
    }
    RETURN_IF_ERROR(sink.Contribute(part.weight, weight_gradient));
    const int64_t stride = part.out_by_in ? part.in_width : part.out_width;
    RETURN_IF_ERROR(MatMul(stream_, n, part.in_width, part.out_width,
                           {gradient, out_stride},
                           {WeightAt<T>(part.weight), stride, !part.out_by_in},
                           in_gradient, part.in_width, {.accumulate = i > 0}));
  }
  return absl::OkStatus();
}

absl::Status TransformerDecoder::BackwardProducts(
    const std::vector<Linear>& parts, const Operand& in,
    const float* out_gradient, int64_t out_stride, float* in_gradient,
    GradientSink& sink) {
  if (!RoundsOperands()) {
    return BackwardProducts<float>(parts, in.data, in.stride, out_gradient,
                                   out_stride, in_gradient, sink);
  }
  DecoderBuffers& b = *buffers_;
  RETURN_IF_ERROR(kernels::RoundToBfloat16(stream_, out_gradient, out_stride,
                                           extent_.tokens(), out_stride,
                                           b.rounded));
  return BackwardProducts<Bfloat16>(parts, in.rounded, parts.front().in_width,
                                    b.rounded, out_stride, in_gradient, sink);
}

absl::Status TransformerDecoder::BackwardBiases(
    const std::vector<Linear>& parts, const float* out_gradient,
    int64_t out_stride, GradientSink& sink) {
  if (parts.front().bias < 0) return absl::OkStatus();
  float* const sums = buffers_->vector_gradients[0];
  RETURN_IF_ERROR(kernels::ColumnSums(stream_, out_gradient, extent_.tokens(),
                                      out_stride, sums, buffers_->workspace));
  for (const Linear& part : parts) {
    RETURN_IF_ERROR(sink.Contribute(part.bias, sums + part.column));
  }
  return absl::OkStatus();
}

absl::Status TransformerDecoder::BackwardNorm(const NormTensors& norm,
                                              const float* in,
                                              const NormStatistics& statistics,
                                              bool first, GradientSink& sink) {
  DecoderBuffers& b = *buffers_;
  float* const* const vectors = b.vector_gradients;
  if (config_.is_gpt2()) {
    RETURN_IF_ERROR(kernels::LayerNormBackward(
        stream_, in, At(norm.weight), statistics.mean, statistics.rstd,
        b.narrow_gradient, extent_.tokens(), config_.width,
        {.x = b.residual_gradient,
         .overwrite = first,
         .weight = vectors[0],
         .bias = vectors[1],
         .x_column_sums = vectors[2]},
        b.workspace));
    RETURN_IF_ERROR(sink.Contribute(norm.weight, vectors[0]));
    return sink.Contribute(norm.bias, vectors[1]);
  }
  RETURN_IF_ERROR(kernels::RmsNormBackward(stream_, in, At(norm.weight),
                                           statistics.rstd, b.narrow_gradient,
                                           extent_.tokens(), config_.width,
                                           {.x = b.residual_gradient,
                                            .overwrite = first,
                                            .weight = vectors[0],
                                            .x_column_sums = vectors[2]},
                                           b.workspace));
  return sink.Contribute(norm.weight, vectors[0]);
}

absl::Status TransformerDecoder::HeadProduct(const Operand& in, int64_t begin,
                                             int64_t count) {
  const int64_t width = config_.width;
  const auto multiply = [&]<typename T>(const T* data) {
    return MatMul(stream_, count, config_.vocabulary, width,
                  {data + begin * width, width},
                  {WeightAt<T>(head_), width, /*transposed=*/true},
                  buffers_->logits, config_.vocabulary);
  };
  return RoundsOperands() ? multiply(const_cast<const Bfloat16*>(in.rounded))
                          : multiply(const_cast<const float*>(in.data));
}

template <typename T>
absl::Status TransformerDecoder::BackwardHeadProducts(const T* in,
                                                      const T* logits_gradient,
                                                      int64_t begin,
                                                      int64_t count) {
  const int64_t width = config_.width;
  const int64_t vocabulary = config_.vocabulary;
  RETURN_IF_ERROR(MatMul(stream_, vocabulary, width, count,
                         {logits_gradient, vocabulary, /*transposed=*/true},
                         {in + begin * width, width}, buffers_->tensor_gradient,
                         width, {.accumulate = begin > 0}));
  return MatMul(stream_, count, width, vocabulary,
                {logits_gradient, vocabulary}, {WeightAt<T>(head_), width},
                buffers_->narrow_gradient + begin * width, width);
}

absl::Status TransformerDecoder::BackwardHeadProducts(int64_t begin,
                                                      int64_t count) {
  DecoderBuffers& b = *buffers_;
  if (!RoundsOperands()) {
    return BackwardHeadProducts<float>(b.final_norm.data, b.logits, begin,
                                       count);
  }
  RETURN_IF_ERROR(kernels::RoundToBfloat16(stream_, b.logits,
                                           config_.vocabulary, count,
                                           config_.vocabulary, b.rounded));
  return BackwardHeadProducts<Bfloat16>(b.final_norm.rounded, b.rounded, begin,
                                        count);
}

absl::Status TransformerDecoder::AcquireHead() {
  RETURN_IF_ERROR(Acquire(HeadUnit()));
  if (HeadWeightUnit() == HeadUnit()) return absl::OkStatus();
  return Acquire(HeadWeightUnit());
}

absl::Status TransformerDecoder::ReleaseHead() {
  RETURN_IF_ERROR(Release(HeadUnit()));
  if (HeadWeightUnit() == HeadUnit()) return absl::OkStatus();
  return Release(HeadWeightUnit());
}

absl::Status TransformerDecoder::BackwardHead(GradientSink& sink) {
  DecoderBuffers& b = *buffers_;
  const int64_t n = extent_.tokens();
  RETURN_IF_ERROR(AcquireHead());
  for (int64_t begin = 0; begin < n; begin += b.head_slice_tokens) {
    const int64_t count = std::min(b.head_slice_tokens, n - begin);
    RETURN_IF_ERROR(HeadProduct(b.final_norm, begin, count));
    RETURN_IF_ERROR(kernels::CrossEntropyForwardBackward(
        stream_, b.logits, b.targets + begin, count, config_.vocabulary,
        b.losses + begin));
    RETURN_IF_ERROR(BackwardHeadProducts(begin, count));
  }
  RETURN_IF_ERROR(sink.Contribute(head_, b.tensor_gradient));
  RETURN_IF_ERROR(BackwardNorm(final_norm_, b.blocks.back().out,
                               b.final_statistics, /*first=*/true, sink));
  RETURN_IF_ERROR(ReleaseHead());
  return sink.UnitDone(layout_.tensors[final_norm_.weight].unit);
}

absl::StatusOr<const float*> TransformerDecoder::BackwardAddition(
    const Linear& linear, Place place, Layer layer, GradientSink& sink) {
  DecoderBuffers& b = *buffers_;
  if (DropsResidual()) {
    RETURN_IF_ERROR(DropOut(place, layer, b.residual_gradient, nullptr,
                            b.dropped_gradient));
    RETURN_IF_ERROR(
        BackwardBiases({linear}, b.dropped_gradient, config_.width, sink));
    return b.dropped_gradient;
  }
  // Left there by the norm behind this place.
  if (linear.bias >= 0) {
    RETURN_IF_ERROR(sink.Contribute(linear.bias, b.vector_gradients[2]));
  }
  return b.residual_gradient;
}

absl::Status TransformerDecoder::BackwardBlock(const BlockTensors& tensors,
                                               const BlockActivations& a,
                                               Layer layer,
                                               GradientSink& sink) {
  DecoderBuffers& b = *buffers_;
  const int64_t n = extent_.tokens();
  const int64_t width = config_.width;
  ASSIGN_OR_RETURN(
      const float* added,
      BackwardAddition(tensors.outer, Place::kFeedForwardOut, layer, sink));
  RETURN_IF_ERROR(BackwardProducts({tensors.outer}, a.activated, added, width,
                                   b.wide_gradient, sink));
  const float* inner_gradient = b.wide_gradient;
  if (config_.is_gpt2()) {
    const int bias = tensors.inner.front().bias;
    float* const vector = b.vector_gradients[0];
    RETURN_IF_ERROR(kernels::BiasGeluBackward(
        stream_, a.inner, At(bias), n, config_.inner_width, b.wide_gradient,
        vector, b.workspace));
    RETURN_IF_ERROR(sink.Contribute(bias, vector));
  } else {
    RETURN_IF_ERROR(kernels::SwiGluBackward(stream_, a.inner, b.wide_gradient,
                                            n, config_.inner_width));
    inner_gradient = a.inner;
    RETURN_IF_ERROR(BackwardBiases(tensors.inner, inner_gradient,
                                   config_.inner_columns(), sink));
  }
  RETURN_IF_ERROR(BackwardProducts(tensors.inner, a.norm2, inner_gradient,
                                   config_.inner_columns(), b.narrow_gradient,
                                   sink));
  RETURN_IF_ERROR(BackwardNorm(tensors.norm2, a.middle, a.norm2_statistics,
                               /*first=*/false, sink));

  ASSIGN_OR_RETURN(added, BackwardAddition(tensors.attention_out,
                                           Place::kAttentionOut, layer, sink));
  RETURN_IF_ERROR(BackwardProducts({tensors.attention_out}, a.attention, added,
                                   width, b.narrow_gradient, sink));
  const kernels::DropoutMask mask = MaskOf(Place::kProbabilities, layer);
  RETURN_IF_ERROR(kernels::AttentionBackward(
      stream_, AttentionShapeOf(extent_), a.qkv, a.attention.data,
      a.log_sum_exp, b.narrow_gradient, b.wide_gradient, b.workspace,
      options_.dropout > 0 ? &mask : nullptr));
  RETURN_IF_ERROR(RotateHeads(extent_, kernels::RotaryDirection::kBackward,
                              b.wide_gradient));
  RETURN_IF_ERROR(
      BackwardBiases(tensors.qkv, b.wide_gradient, config_.qkv_width(), sink));
  RETURN_IF_ERROR(BackwardProducts(tensors.qkv, a.norm1, b.wide_gradient,
                                   config_.qkv_width(), b.narrow_gradient,
                                   sink));
  RETURN_IF_ERROR(BackwardNorm(tensors.norm1, a.in, a.norm1_statistics,
                               /*first=*/false, sink));
  const int unit = layout_.tensors[tensors.norm1.weight].unit;
  RETURN_IF_ERROR(Release(unit));
  return sink.UnitDone(unit);
}

absl::Status TransformerDecoder::BackwardEmbedding(GradientSink& sink) {
  DecoderBuffers& b = *buffers_;
  if (DropsResidual()) {
    RETURN_IF_ERROR(DropOut(Place::kEmbedding, 0, b.residual_gradient, nullptr,
                            b.residual_gradient));
  }
  RETURN_IF_ERROR(kernels::TokenEmbeddingBackward(
      stream_, b.tokens, b.residual_gradient, extent_.tokens(),
      config_.vocabulary, config_.width, b.tensor_gradient));
  RETURN_IF_ERROR(sink.Contribute(token_embedding_, b.tensor_gradient));
  if (position_embedding_ >= 0) {
    RETURN_IF_ERROR(kernels::PositionEmbeddingBackward(
        stream_, b.residual_gradient, extent_.rows, extent_.sequence_length,
        config_.position_max, config_.width, b.tensor_gradient));
    RETURN_IF_ERROR(sink.Contribute(position_embedding_, b.tensor_gradient));
  }
  return sink.UnitDone(layout_.tensors[token_embedding_].unit);
}

absl::StatusOr<LossSum> TransformerDecoder::SumLosses(int64_t count,
                                                      int64_t counted) {
  RETURN_IF_ERROR(
      stream_.CopyToHost(host_losses_.data(), buffers_->losses,
                         count * static_cast<int64_t>(sizeof(float))));
  RETURN_IF_ERROR(stream_.Synchronize());
  LossSum sum{.token_count = counted};
  for (int64_t i = 0; i < count; ++i) sum.nats += host_losses_[i];
  return sum;
}

absl::StatusOr<LossSum> TransformerDecoder::Backward(GradientSink& sink) {
  if (!has_forward_) {
    return absl::FailedPreconditionError(
        "Backward without a Forward that succeeded");
  }
  RETURN_IF_ERROR(BackwardHead(sink));
  for (size_t i = blocks_.size(); i-- > 0;) {
    RETURN_IF_ERROR(Acquire(BlockUnit(i)));
    // The last one's are still there.
    if (options_.recompute == Recompute::kBlock && i + 1 < blocks_.size()) {
      RETURN_IF_ERROR(
          ForwardBlock(extent_, blocks_[i], buffers_->blocks[i], Layer(i)));
    }
    RETURN_IF_ERROR(
        BackwardBlock(blocks_[i], buffers_->blocks[i], Layer(i), sink));
  }
  RETURN_IF_ERROR(BackwardEmbedding(sink));
  return SumLosses(extent_.tokens(), counted_);
}

absl::Status TransformerDecoder::ForwardForEvaluation(const Extent& extent) {
  const BlockActivations& a = buffers_->evaluation;
  RETURN_IF_ERROR(Acquire(EmbeddingUnit()));
  RETURN_IF_ERROR(Embed(extent, buffers_->evaluation_tokens, a.in));
  RETURN_IF_ERROR(Release(EmbeddingUnit()));
  for (size_t i = 0; i < blocks_.size(); ++i) {
    RETURN_IF_ERROR(Acquire(BlockUnit(i)));
    RETURN_IF_ERROR(ForwardBlock(extent, blocks_[i], a, std::nullopt));
    RETURN_IF_ERROR(Release(BlockUnit(i)));
  }
  RETURN_IF_ERROR(AcquireHead());
  RETURN_IF_ERROR(
      Norm(extent, final_norm_, a.out, a.norm1.data, a.norm1_statistics));
  return Round(extent, a.norm1, config_.width);
}

absl::StatusOr<LossSum> TransformerDecoder::Evaluate(const int32_t* tokens,
                                                     int64_t row_count) {
  DecoderBuffers& b = *buffers_;
  if (row_count < 0 || row_count > extent_.rows) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Evaluate: row_count=", row_count, ": expected 0 to ", extent_.rows));
  }
  int64_t counted = 0;
  RETURN_IF_ERROR(CopyTokens(tokens, row_count, b.evaluation_tokens,
                             b.evaluation_targets, &counted));
  const Extent extent{row_count, extent_.sequence_length};
  RETURN_IF_ERROR(ForwardForEvaluation(extent));
  for (int64_t begin = 0; begin < extent.tokens();
       begin += b.head_slice_tokens) {
    const int64_t count =
        std::min(b.head_slice_tokens, extent.tokens() - begin);
    RETURN_IF_ERROR(HeadProduct(b.evaluation.norm1, begin, count));
    RETURN_IF_ERROR(kernels::CrossEntropyForward(
        stream_, b.logits, b.evaluation_targets + begin, count,
        config_.vocabulary, b.losses + begin));
  }
  RETURN_IF_ERROR(ReleaseHead());
  return SumLosses(extent.tokens(), counted);
}

absl::Status TransformerDecoder::Logits(const int32_t* tokens, int64_t position,
                                        float* logits) {
  DecoderBuffers& b = *buffers_;
  if (position < 0 || position >= extent_.sequence_length) {
    return absl::InvalidArgumentError(
        absl::StrCat("Logits: position=", position, ": expected 0 to ",
                     extent_.sequence_length - 1));
  }
  // Later tokens have no say in it.
  const Extent extent{1, position + 1};
  for (int64_t t = 0; t <= position; ++t) {
    RETURN_IF_ERROR(CheckToken(tokens[t], 0, t));
  }
  RETURN_IF_ERROR(stream_.CopyToDevice(
      b.evaluation_tokens, tokens,
      extent.tokens() * static_cast<int64_t>(sizeof(int32_t))));
  RETURN_IF_ERROR(ForwardForEvaluation(extent));
  RETURN_IF_ERROR(HeadProduct(b.evaluation.norm1, position, 1));
  RETURN_IF_ERROR(ReleaseHead());
  RETURN_IF_ERROR(stream_.CopyToHost(
      logits, b.logits,
      config_.vocabulary * static_cast<int64_t>(sizeof(float))));
  return stream_.Synchronize();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::Create(
    const ModelConfig& config, const Layout& layout, int64_t rows,
    int64_t sequence_length, kernels::Stream& stream,
    ParameterSource& parameters, const DecoderOptions& options) {
  RETURN_IF_ERROR(ValidateModelConfig(config));
  constexpr int64_t kRowsMax = 1 << 16;
  if (rows < 1 || rows > kRowsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("micro_batch_size=", rows, ": expected 1 to ", kRowsMax));
  }
  if (sequence_length < 1 || sequence_length > config.position_max) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sequence_length=", sequence_length,
        ": expected 1 to the model's longest, ", config.position_max));
  }
  if (!(options.dropout >= 0 && options.dropout < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("dropout=", options.dropout, ": expected 0 to below 1"));
  }
  if (options.products == Products::kBfloat16 &&
      !stream.device().has_bfloat16()) {
    return absl::UnimplementedError(absl::StrCat(
        "bfloat16 needs AVX-512, which ", stream.device().model_name(), " (",
        stream.device().numeric_class(), ") lacks"));
  }
  LS_CHECK(layout.element_count == MakeLayout(config).element_count);
  ASSIGN_OR_RETURN(auto buffers,
                   DecoderBuffers::Create(config, layout, rows, sequence_length,
                                          options, stream.device()));
  auto decoder = std::make_unique<TransformerDecoder>(
      config, layout, Extent{rows, sequence_length}, options, stream,
      parameters, std::move(buffers));
  RETURN_IF_ERROR(decoder->Prepare());
  return decoder;
}

}  // namespace lockstep
