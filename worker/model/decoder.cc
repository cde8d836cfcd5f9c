#include "worker/model/decoder.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status.h"
#include "kernels/attention.h"
#include "kernels/column_sums.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/gelu.h"
#include "kernels/layer_norm.h"
#include "kernels/matmul.h"
#include "worker/model/decoder_buffers.h"

namespace lockstep {
namespace {

using kernels::MatMul;
using kernels::MatMulInput;

// A weight with the bias that follows it, or a norm's two; indices into
// Layout::tensors.
struct TensorPair {
  int weight = -1;
  int bias = -1;
};

struct BlockTensors {
  TensorPair norm1, qkv, attention_out, norm2, inner, outer;
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
                     Extent extent, kernels::Stream& stream,
                     std::unique_ptr<DecoderBuffers> buffers)
      : config_(config),
        layout_(layout),
        extent_(extent),
        stream_(stream),
        buffers_(std::move(buffers)),
        host_tokens_(extent.tokens()),
        host_targets_(extent.tokens()),
        host_losses_(extent.tokens()) {
    using R = TensorRole;
    for (int i = 0; i < config.layer_count; ++i) {
      const auto pair = [&](R weight, R bias) {
        return TensorPair{layout_.Find(weight, i), layout_.Find(bias, i)};
      };
      blocks_.push_back(
          {.norm1 = pair(R::kNorm1Weight, R::kNorm1Bias),
           .qkv = pair(R::kQkvWeight, R::kQkvBias),
           .attention_out = pair(R::kAttentionOutWeight, R::kAttentionOutBias),
           .norm2 = pair(R::kNorm2Weight, R::kNorm2Bias),
           .inner = pair(R::kInnerWeight, R::kInnerBias),
           .outer = pair(R::kOuterWeight, R::kOuterBias)});
    }
    token_embedding_ = layout_.Find(R::kTokenEmbedding);
    position_embedding_ = layout_.Find(R::kPositionEmbedding);
    final_norm_ = {layout_.Find(R::kFinalNormWeight),
                   layout_.Find(R::kFinalNormBias)};
    head_ = config.tied_head ? token_embedding_ : layout_.Find(R::kHeadWeight);
  }

  absl::Status Forward(const int32_t* tokens, const float* parameters) override;
  absl::StatusOr<LossSum> Backward(GradientSink& sink) override;
  absl::StatusOr<LossSum> Evaluate(const int32_t* tokens,
                                   const float* parameters,
                                   int64_t row_count) override;
  absl::Status Logits(const int32_t* tokens, const float* parameters,
                      int64_t position, float* logits) override;

 private:
  // Splits (rows, sequence_length + 1) tokens into inputs and targets, checks
  // them, and copies them to the device.
  absl::Status CopyTokens(const int32_t* tokens, int64_t rows,
                          int32_t* device_tokens, int32_t* device_targets);
  absl::Status CheckToken(int32_t token, int64_t row, int64_t position) const;

  absl::Status Embed(const Extent& extent, const int32_t* tokens, float* out);
  absl::Status ForwardBlock(const Extent& extent, const BlockTensors& tensors,
                            const BlockActivations& activations);
  // Embedding and blocks over the evaluation's memory; the result is in
  // buffers_->evaluation.norm1, normalised.
  absl::Status ForwardForEvaluation(const Extent& extent);

  absl::Status BackwardHead(GradientSink& sink);
  absl::Status BackwardBlock(const BlockTensors& tensors,
                             const BlockActivations& activations,
                             GradientSink& sink);
  absl::Status BackwardEmbedding(GradientSink& sink);

  // The weight's and the input's gradient of out = in x weight, with the
  // weight's going to the sink.  in_gradient may be out_gradient's neighbour
  // but not itself.
  absl::Status BackwardLinear(int weight, const float* in,
                              const float* out_gradient, float* in_gradient,
                              GradientSink& sink);
  // Of a norm of the residual stream: adds to residual_gradient from
  // narrow_gradient, hands the norm's gradients to the sink, and leaves the
  // column sums of the new residual_gradient in vector_gradients[2].
  absl::Status BackwardNorm(const TensorPair& norm, const float* in,
                            const NormStatistics& statistics, bool first,
                            GradientSink& sink);

  absl::StatusOr<LossSum> SumLosses(int64_t count);

  const float* At(int tensor) const {
    return parameters_ + layout_.tensors[tensor].offset;
  }
  kernels::AttentionShape AttentionShapeOf(const Extent& extent) const {
    return {.row_count = extent.rows,
            .sequence_length = extent.sequence_length,
            .head_count = config_.head_count,
            .head_width = config_.head_width()};
  }

  const ModelConfig config_;
  const Layout layout_;
  const Extent extent_;
  kernels::Stream& stream_;
  const std::unique_ptr<DecoderBuffers> buffers_;

  std::vector<BlockTensors> blocks_;
  int token_embedding_ = -1;
  int position_embedding_ = -1;
  TensorPair final_norm_;
  int head_ = -1;

  std::vector<int32_t> host_tokens_, host_targets_;
  std::vector<float> host_losses_;
  // Of the last Forward, or of the Evaluate or Logits that runs.
  const float* parameters_ = nullptr;
  const float* forward_parameters_ = nullptr;
};

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
                                            int32_t* device_targets) {
  const int64_t length = extent_.sequence_length;
  for (int64_t row = 0; row < rows; ++row) {
    const int32_t* const from = tokens + row * (length + 1);
    for (int64_t t = 0; t <= length; ++t) {
      RETURN_IF_ERROR(CheckToken(from[t], row, t));
    }
    std::copy(from, from + length, host_tokens_.begin() + row * length);
    std::copy(from + 1, from + length + 1,
              host_targets_.begin() + row * length);
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
  return kernels::EmbeddingForward(stream_, tokens, At(token_embedding_),
                                   At(position_embedding_), extent.rows,
                                   extent.sequence_length, config_.width, out);
}

absl::Status TransformerDecoder::ForwardBlock(const Extent& extent,
                                              const BlockTensors& tensors,
                                              const BlockActivations& a) {
  const int64_t n = extent.tokens();
  const int64_t width = config_.width;
  const int64_t inner_width = config_.inner_width;
  RETURN_IF_ERROR(kernels::LayerNormForward(
      stream_, a.in, At(tensors.norm1.weight), At(tensors.norm1.bias), n, width,
      config_.norm_epsilon, a.norm1, a.norm1_statistics.mean,
      a.norm1_statistics.rstd));
  RETURN_IF_ERROR(MatMul(stream_, n, 3 * width, width, {a.norm1, width},
                         {At(tensors.qkv.weight), 3 * width}, a.qkv, 3 * width,
                         {.bias = At(tensors.qkv.bias)}));
  RETURN_IF_ERROR(kernels::AttentionForward(stream_, AttentionShapeOf(extent),
                                            a.qkv, a.attention, a.log_sum_exp,
                                            buffers_->workspace));
  RETURN_IF_ERROR(
      MatMul(stream_, n, width, width, {a.attention, width},
             {At(tensors.attention_out.weight), width}, a.middle, width,
             {.residual = a.in, .bias = At(tensors.attention_out.bias)}));
  RETURN_IF_ERROR(kernels::LayerNormForward(
      stream_, a.middle, At(tensors.norm2.weight), At(tensors.norm2.bias), n,
      width, config_.norm_epsilon, a.norm2, a.norm2_statistics.mean,
      a.norm2_statistics.rstd));
  RETURN_IF_ERROR(MatMul(stream_, n, inner_width, width, {a.norm2, width},
                         {At(tensors.inner.weight), inner_width}, a.inner,
                         inner_width));
  RETURN_IF_ERROR(kernels::BiasGeluForward(
      stream_, a.inner, At(tensors.inner.bias), n, inner_width, a.gelu));
  return MatMul(stream_, n, width, inner_width, {a.gelu, inner_width},
                {At(tensors.outer.weight), width}, a.out, width,
                {.residual = a.middle, .bias = At(tensors.outer.bias)});
}

absl::Status TransformerDecoder::Forward(const int32_t* tokens,
                                         const float* parameters) {
  DecoderBuffers& b = *buffers_;
  forward_parameters_ = nullptr;
  RETURN_IF_ERROR(CopyTokens(tokens, extent_.rows, b.tokens, b.targets));
  parameters_ = parameters;
  RETURN_IF_ERROR(Embed(extent_, b.tokens, b.blocks.front().in));
  for (size_t i = 0; i < blocks_.size(); ++i) {
    RETURN_IF_ERROR(ForwardBlock(extent_, blocks_[i], b.blocks[i]));
  }
  RETURN_IF_ERROR(kernels::LayerNormForward(
      stream_, b.blocks.back().out, At(final_norm_.weight),
      At(final_norm_.bias), extent_.tokens(), config_.width,
      config_.norm_epsilon, b.final_norm, b.final_statistics.mean,
      b.final_statistics.rstd));
  forward_parameters_ = parameters;
  return absl::OkStatus();
}

absl::Status TransformerDecoder::BackwardLinear(int weight, const float* in,
                                                const float* out_gradient,
                                                float* in_gradient,
                                                GradientSink& sink) {
  const int64_t n = extent_.tokens();
  const int64_t in_width = layout_.tensors[weight].shape[0];
  const int64_t out_width = layout_.tensors[weight].shape[1];
  RETURN_IF_ERROR(MatMul(
      stream_, in_width, out_width, n, {in, in_width, /*transposed=*/true},
      {out_gradient, out_width}, buffers_->tensor_gradient, out_width));
  RETURN_IF_ERROR(sink.Contribute(weight, buffers_->tensor_gradient));
  return MatMul(stream_, n, in_width, out_width, {out_gradient, out_width},
                {At(weight), out_width, /*transposed=*/true}, in_gradient,
                in_width);
}

absl::Status TransformerDecoder::BackwardNorm(const TensorPair& norm,
                                              const float* in,
                                              const NormStatistics& statistics,
                                              bool first, GradientSink& sink) {
  float* const* const vectors = buffers_->vector_gradients;
  RETURN_IF_ERROR(kernels::LayerNormBackward(
      stream_, in, At(norm.weight), statistics.mean, statistics.rstd,
      buffers_->narrow_gradient, extent_.tokens(), config_.width,
      {.x = buffers_->residual_gradient,
       .overwrite = first,
       .weight = vectors[0],
       .bias = vectors[1],
       .x_column_sums = vectors[2]},
      buffers_->workspace));
  RETURN_IF_ERROR(sink.Contribute(norm.weight, vectors[0]));
  return sink.Contribute(norm.bias, vectors[1]);
}

absl::Status TransformerDecoder::BackwardHead(GradientSink& sink) {
  DecoderBuffers& b = *buffers_;
  const int64_t n = extent_.tokens();
  const int64_t width = config_.width;
  const int64_t vocabulary = config_.vocabulary;
  for (int64_t begin = 0; begin < n; begin += b.head_slice_tokens) {
    const int64_t count = std::min(b.head_slice_tokens, n - begin);
    const float* const in = b.final_norm + begin * width;
    RETURN_IF_ERROR(MatMul(stream_, count, vocabulary, width, {in, width},
                           {At(head_), width, /*transposed=*/true}, b.logits,
                           vocabulary));
    RETURN_IF_ERROR(kernels::CrossEntropyForwardBackward(
        stream_, b.logits, b.targets + begin, count, vocabulary,
        b.losses + begin));
    RETURN_IF_ERROR(MatMul(stream_, vocabulary, width, count,
                           {b.logits, vocabulary, /*transposed=*/true},
                           {in, width}, b.tensor_gradient, width,
                           {.accumulate = begin > 0}));
    RETURN_IF_ERROR(MatMul(stream_, count, width, vocabulary,
                           {b.logits, vocabulary}, {At(head_), width},
                           b.narrow_gradient + begin * width, width));
  }
  RETURN_IF_ERROR(sink.Contribute(head_, b.tensor_gradient));
  RETURN_IF_ERROR(BackwardNorm(final_norm_, b.blocks.back().out,
                               b.final_statistics, /*first=*/true, sink));
  return sink.UnitDone(layout_.tensors[final_norm_.weight].unit);
}

absl::Status TransformerDecoder::BackwardBlock(const BlockTensors& tensors,
                                               const BlockActivations& a,
                                               GradientSink& sink) {
  DecoderBuffers& b = *buffers_;
  const int64_t n = extent_.tokens();
  float* const vector = b.vector_gradients[0];
  // Left there by the norm behind this place; so for attention_out below.
  RETURN_IF_ERROR(sink.Contribute(tensors.outer.bias, b.vector_gradients[2]));
  RETURN_IF_ERROR(BackwardLinear(tensors.outer.weight, a.gelu,
                                 b.residual_gradient, b.wide_gradient, sink));
  RETURN_IF_ERROR(kernels::BiasGeluBackward(
      stream_, a.inner, At(tensors.inner.bias), n, config_.inner_width,
      b.wide_gradient, vector, b.workspace));
  RETURN_IF_ERROR(sink.Contribute(tensors.inner.bias, vector));
  RETURN_IF_ERROR(BackwardLinear(tensors.inner.weight, a.norm2, b.wide_gradient,
                                 b.narrow_gradient, sink));
  RETURN_IF_ERROR(BackwardNorm(tensors.norm2, a.middle, a.norm2_statistics,
                               /*first=*/false, sink));

  RETURN_IF_ERROR(
      sink.Contribute(tensors.attention_out.bias, b.vector_gradients[2]));
  RETURN_IF_ERROR(BackwardLinear(tensors.attention_out.weight, a.attention,
                                 b.residual_gradient, b.narrow_gradient, sink));
  RETURN_IF_ERROR(kernels::AttentionBackward(
      stream_, AttentionShapeOf(extent_), a.qkv, a.attention, a.log_sum_exp,
      b.narrow_gradient, b.wide_gradient, b.workspace));
  RETURN_IF_ERROR(kernels::ColumnSums(stream_, b.wide_gradient, n,
                                      3 * config_.width, vector, b.workspace));
  RETURN_IF_ERROR(sink.Contribute(tensors.qkv.bias, vector));
  RETURN_IF_ERROR(BackwardLinear(tensors.qkv.weight, a.norm1, b.wide_gradient,
                                 b.narrow_gradient, sink));
  RETURN_IF_ERROR(BackwardNorm(tensors.norm1, a.in, a.norm1_statistics,
                               /*first=*/false, sink));
  return sink.UnitDone(layout_.tensors[tensors.qkv.weight].unit);
}

absl::Status TransformerDecoder::BackwardEmbedding(GradientSink& sink) {
  DecoderBuffers& b = *buffers_;
  RETURN_IF_ERROR(kernels::TokenEmbeddingBackward(
      stream_, b.tokens, b.residual_gradient, extent_.tokens(),
      config_.vocabulary, config_.width, b.tensor_gradient));
  RETURN_IF_ERROR(sink.Contribute(token_embedding_, b.tensor_gradient));
  RETURN_IF_ERROR(kernels::PositionEmbeddingBackward(
      stream_, b.residual_gradient, extent_.rows, extent_.sequence_length,
      config_.position_max, config_.width, b.tensor_gradient));
  RETURN_IF_ERROR(sink.Contribute(position_embedding_, b.tensor_gradient));
  return sink.UnitDone(layout_.tensors[token_embedding_].unit);
}

absl::StatusOr<LossSum> TransformerDecoder::SumLosses(int64_t count) {
  RETURN_IF_ERROR(
      stream_.CopyToHost(host_losses_.data(), buffers_->losses,
                         count * static_cast<int64_t>(sizeof(float))));
  RETURN_IF_ERROR(stream_.Synchronize());
  LossSum sum{.token_count = count};
  for (int64_t i = 0; i < count; ++i) sum.nats += host_losses_[i];
  return sum;
}

absl::StatusOr<LossSum> TransformerDecoder::Backward(GradientSink& sink) {
  if (forward_parameters_ == nullptr) {
    return absl::FailedPreconditionError(
        "Backward without a Forward that succeeded");
  }
  parameters_ = forward_parameters_;
  RETURN_IF_ERROR(BackwardHead(sink));
  for (size_t i = blocks_.size(); i-- > 0;) {
    RETURN_IF_ERROR(BackwardBlock(blocks_[i], buffers_->blocks[i], sink));
  }
  RETURN_IF_ERROR(BackwardEmbedding(sink));
  return SumLosses(extent_.tokens());
}

absl::Status TransformerDecoder::ForwardForEvaluation(const Extent& extent) {
  const BlockActivations& a = buffers_->evaluation;
  RETURN_IF_ERROR(Embed(extent, buffers_->evaluation_tokens, a.in));
  for (const BlockTensors& block : blocks_) {
    RETURN_IF_ERROR(ForwardBlock(extent, block, a));
  }
  return kernels::LayerNormForward(
      stream_, a.out, At(final_norm_.weight), At(final_norm_.bias),
      extent.tokens(), config_.width, config_.norm_epsilon, a.norm1,
      a.norm1_statistics.mean, a.norm1_statistics.rstd);
}

absl::StatusOr<LossSum> TransformerDecoder::Evaluate(const int32_t* tokens,
                                                     const float* parameters,
                                                     int64_t row_count) {
  DecoderBuffers& b = *buffers_;
  if (row_count < 0 || row_count > extent_.rows) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Evaluate: row_count=", row_count, ": expected 0 to ", extent_.rows));
  }
  RETURN_IF_ERROR(
      CopyTokens(tokens, row_count, b.evaluation_tokens, b.evaluation_targets));
  parameters_ = parameters;
  const Extent extent{row_count, extent_.sequence_length};
  const int64_t width = config_.width;
  RETURN_IF_ERROR(ForwardForEvaluation(extent));
  for (int64_t begin = 0; begin < extent.tokens();
       begin += b.head_slice_tokens) {
    const int64_t count =
        std::min(b.head_slice_tokens, extent.tokens() - begin);
    RETURN_IF_ERROR(MatMul(stream_, count, config_.vocabulary, width,
                           {b.evaluation.norm1 + begin * width, width},
                           {At(head_), width, /*transposed=*/true}, b.logits,
                           config_.vocabulary));
    RETURN_IF_ERROR(kernels::CrossEntropyForward(
        stream_, b.logits, b.evaluation_targets + begin, count,
        config_.vocabulary, b.losses + begin));
  }
  return SumLosses(extent.tokens());
}

absl::Status TransformerDecoder::Logits(const int32_t* tokens,
                                        const float* parameters,
                                        int64_t position, float* logits) {
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
  parameters_ = parameters;
  RETURN_IF_ERROR(ForwardForEvaluation(extent));
  RETURN_IF_ERROR(
      MatMul(stream_, 1, config_.vocabulary, config_.width,
             {b.evaluation.norm1 + position * config_.width, config_.width},
             {At(head_), config_.width, /*transposed=*/true}, b.logits,
             config_.vocabulary));
  RETURN_IF_ERROR(stream_.CopyToHost(
      logits, b.logits,
      config_.vocabulary * static_cast<int64_t>(sizeof(float))));
  return stream_.Synchronize();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::Create(
    const ModelConfig& config, const Layout& layout, int64_t rows,
    int64_t sequence_length, kernels::Stream& stream) {
  RETURN_IF_ERROR(ValidateModelConfig(config));
  constexpr int64_t kRowsMax = 1 << 16;
  if (rows < 1 || rows > kRowsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("micro_batch_size=", rows, ": expected 1 to ", kRowsMax));
  }
  if (sequence_length < 1 || sequence_length > config.position_max) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sequence_length=", sequence_length,
        ": expected 1 to the model's n_positions=", config.position_max));
  }
  LS_CHECK(layout.element_count == MakeLayout(config).element_count);
  ASSIGN_OR_RETURN(auto buffers,
                   DecoderBuffers::Create(config, layout, rows, sequence_length,
                                          stream.device()));
  return std::make_unique<TransformerDecoder>(config, layout,
                                              Extent{rows, sequence_length},
                                              stream, std::move(buffers));
}

}  // namespace lockstep
