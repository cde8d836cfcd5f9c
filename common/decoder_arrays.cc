#include "common/decoder_arrays.h"

#include <algorithm>
#include <numeric>

#include "common/kernel_workspace.h"

namespace lockstep {
namespace {

int64_t Aligned(int64_t bytes) {
  constexpr int64_t kAlignment = 64;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// More than any machine has: counts stop there, so that they do not overflow.
constexpr int64_t kBytesMax = int64_t{1} << 58;

// Hands out parts of one piece of memory; without memory it only counts.
class Carver {
 public:
  explicit Carver(void* memory) : memory_(static_cast<char*>(memory)) {}

  float* Floats(DecoderPart part, int64_t count) {
    return Take<float>(part, count);
  }
  int32_t* Integers(DecoderPart part, int64_t count) {
    return Take<int32_t>(part, count);
  }
  Bfloat16* Rounded(DecoderPart part, int64_t count) {
    return Take<Bfloat16>(part, count);
  }
  const DecoderBytes& bytes() const { return bytes_; }

 private:
  template <typename T>
  T* Take(DecoderPart part, int64_t count) {
    T* const place =
        memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + taken_);
    const int64_t bytes = Aligned(count * static_cast<int64_t>(sizeof(T)));
    if (memory_ != nullptr) taken_ += bytes;
    bytes_[part] = std::min(bytes_[part] + bytes, kBytesMax);
    return place;
  }

  char* const memory_;
  int64_t taken_ = 0;
  DecoderBytes bytes_;
};

}  // namespace

int64_t DecoderBytes::sum() const {
  return std::accumulate(parts.begin(), parts.end(), int64_t{0});
}

int64_t HeadSliceTokens(int64_t vocabulary, int64_t tokens) {
  constexpr int64_t kLogits = int64_t{1} << 24;  // 64 MiB of them.
  return std::min(tokens,
                  std::max<int64_t>(kLogits / vocabulary / 64 * 64, 64));
}

DecoderWorkspace WorkspaceOf(const ModelConfig& c, const DecoderShape& shape) {
  const int64_t tokens = shape.tokens();
  const int64_t wide = std::max(c.qkv_width(), c.inner_columns());
  const int64_t shared =
      std::max({c.is_gpt2() ? workspace::LayerNorm(tokens, c.width)
                            : workspace::RmsNorm(tokens, c.width),
                c.is_gpt2() ? workspace::BiasGelu(tokens, c.inner_width) : 0,
                workspace::ColumnSums(tokens, wide)});
  const int64_t thread =
      workspace::Attention(shape.sequence_length, c.head_width).count();
  return {.shared_bytes = Aligned(shared * int64_t{sizeof(float)}),
          .thread_bytes = Aligned(thread * int64_t{sizeof(float)})};
}

DecoderBytes PlaceDecoderArrays(const ModelConfig& c, const Layout& layout,
                                const DecoderShape& shape, void* memory,
                                DecoderArrays& b) {
  using enum DecoderPart;
  Carver carver(memory);
  const int64_t tokens = shape.tokens();
  const int64_t wide = std::max(c.qkv_width(), c.inner_columns());
  const int64_t narrow = std::max(c.width, c.query_width());
  const bool rounds = shape.bfloat16;
  const auto activations = [&](int64_t width) {
    return carver.Floats(kActivations, tokens * width);
  };
  const auto statistics = [&] {
    NormStatistics s;
    if (c.is_gpt2()) s.mean = activations(1);
    s.rstd = activations(1);
    return s;
  };

  // Backward's own, of which forward uses some before it.
  b.narrow_gradient = carver.Floats(kGradients, tokens * narrow);
  b.wide_gradient = carver.Floats(kGradients, tokens * wide);
  b.residual_gradient = carver.Floats(kGradients, tokens * c.width);
  if (c.is_gpt2() && shape.drops) {
    b.dropped_gradient = carver.Floats(kGradients, tokens * c.width);
  }
  // An operand that is needed in float32 until it is rounded only.
  const auto operand = [&](int64_t width, float* until_rounded) {
    Operand o{.stride = width};
    o.data = rounds ? until_rounded : activations(width);
    if (rounds) o.rounded = carver.Rounded(kActivations, tokens * width);
    return o;
  };

  b.tokens = carver.Integers(kActivations, tokens);
  b.targets = carver.Integers(kActivations, tokens);
  b.blocks.assign(c.layer_count, {});
  float* in = activations(c.width);
  for (size_t i = 0; i < b.blocks.size(); ++i) {
    BlockActivations& block = b.blocks[i];
    if (shape.recomputes_blocks && i > 0) {
      block = b.blocks.front();
      block.in = in;
      in = block.out = activations(c.width);
      continue;
    }
    block.in = in;
    block.norm1_statistics = statistics();
    block.norm1 = operand(c.width, b.narrow_gradient);
    block.qkv = activations(c.qkv_width());
    block.attention = {.data = activations(c.query_width()),
                       .stride = c.query_width()};
    if (rounds) {
      block.attention.rounded =
          carver.Rounded(kActivations, tokens * c.query_width());
    }
    block.log_sum_exp = activations(c.head_count);
    block.middle = activations(c.width);
    block.norm2_statistics = statistics();
    block.norm2 = operand(c.width, b.narrow_gradient);
    block.inner = activations(c.inner_columns());
    block.activated = operand(c.inner_width, b.wide_gradient);
    in = block.out = activations(c.width);
  }
  b.final_statistics = statistics();
  b.final_norm = operand(c.width, b.narrow_gradient);

  if (!c.is_gpt2()) {
    const int64_t turns = shape.sequence_length * c.head_width / 2;
    b.cosine = carver.Floats(kActivations, turns);
    b.sine = carver.Floats(kActivations, turns);
  }

  int64_t largest = 0;
  for (const Tensor& tensor : layout.tensors) {
    largest = std::max(largest, tensor.element_count);
  }
  b.tensor_gradient = carver.Floats(kGradients, largest);
  for (float*& vector : b.vector_gradients) {
    vector = carver.Floats(kGradients, std::max(wide, c.width));
  }

  b.head_slice_tokens = HeadSliceTokens(c.vocabulary, tokens);
  b.logits = carver.Floats(kLogits, b.head_slice_tokens * c.vocabulary);
  b.losses = carver.Floats(kLogits, tokens);
  if (rounds) {
    b.rounded = carver.Rounded(kGradients,
                               std::max({tokens * wide, tokens * narrow,
                                         b.head_slice_tokens * c.vocabulary}));
  }

  b.evaluation_tokens = carver.Integers(kActivations, tokens);
  b.evaluation_targets = carver.Integers(kActivations, tokens);
  BlockActivations& e = b.evaluation;
  e.in = e.middle = e.out = b.residual_gradient;
  e.norm1 = {b.narrow_gradient, c.width, b.rounded};
  e.attention = {b.narrow_gradient, c.query_width(), b.rounded};
  e.norm2 = e.norm1;
  e.qkv = e.inner = b.wide_gradient;
  // SwiGLU's result takes the place of its gate.
  e.activated = {b.wide_gradient, c.inner_columns(), b.rounded};
  e.norm1_statistics = e.norm2_statistics = statistics();
  e.log_sum_exp = activations(c.head_count);

  const DecoderWorkspace sizes = WorkspaceOf(c, shape);
  b.workspace = carver.Floats(
      kWorkspace,
      std::max(sizes.shared_bytes, sizes.thread_bytes * shape.thread_count) /
          static_cast<int64_t>(sizeof(float)));
  return carver.bytes();
}

}  // namespace lockstep
