#include "worker/model/decoder_buffers.h"

#include <algorithm>
#include <utility>

#include "common/status.h"
#include "kernels/column_sums.h"
#include "kernels/gelu.h"
#include "kernels/layer_norm.h"
#include "kernels/rms_norm.h"

namespace lockstep {
namespace {

// Logits at a time, 64 MiB of them: enough rows for fast products with any
// vocabulary, and a function of the model alone, since how a weight's gradient
// is summed over slices decides its bits.
constexpr int64_t kHeadSliceLogits = int64_t{1} << 24;

// Hands out parts of one piece of memory; without memory it only counts.
class Carver {
 public:
  explicit Carver(void* memory) : memory_(static_cast<char*>(memory)) {}

  float* Floats(int64_t count) { return Take<float>(count); }
  int32_t* Integers(int64_t count) { return Take<int32_t>(count); }
  kernels::Bfloat16* Rounded(int64_t count) {
    return Take<kernels::Bfloat16>(count);
  }
  int64_t byte_count() const { return byte_count_; }

 private:
  template <typename T>
  T* Take(int64_t count) {
    constexpr int64_t kAlignment = 64;
    T* const part = memory_ == nullptr
                        ? nullptr
                        : reinterpret_cast<T*>(memory_ + byte_count_);
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
    byte_count_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return part;
  }

  char* const memory_;
  int64_t byte_count_ = 0;
};

void Carve(const ModelConfig& c, const Layout& layout, int64_t rows,
           int64_t sequence_length, const DecoderOptions& options,
           kernels::Device& device, Carver& carver, DecoderBuffers& b) {
  const int64_t tokens = rows * sequence_length;
  const int64_t wide = std::max(c.qkv_width(), c.inner_columns());
  const auto statistics = [&] {
    NormStatistics s;
    if (c.is_gpt2()) s.mean = carver.Floats(tokens);
    s.rstd = carver.Floats(tokens);
    return s;
  };

  const bool rounds = options.products == Products::kBfloat16;
  // Backward's own, of which forward uses some before it.
  b.narrow_gradient =
      carver.Floats(tokens * std::max(c.width, c.query_width()));
  b.wide_gradient = carver.Floats(tokens * wide);
  b.residual_gradient = carver.Floats(tokens * c.width);
  if (c.is_gpt2() && options.dropout > 0) {
    b.dropped_gradient = carver.Floats(tokens * c.width);
  }
  // An operand that is needed in float32 until it is rounded only.
  const auto operand = [&](int64_t width, float* until_rounded) {
    Operand o{.stride = width};
    o.data = rounds ? until_rounded : carver.Floats(tokens * width);
    if (rounds) o.rounded = carver.Rounded(tokens * width);
    return o;
  };

  b.tokens = carver.Integers(tokens);
  b.targets = carver.Integers(tokens);
  b.blocks.assign(c.layer_count, {});
  float* in = carver.Floats(tokens * c.width);
  for (size_t i = 0; i < b.blocks.size(); ++i) {
    BlockActivations& block = b.blocks[i];
    if (options.recompute == Recompute::kBlock && i > 0) {
      block = b.blocks.front();
      block.in = in;
      in = block.out = carver.Floats(tokens * c.width);
      continue;
    }
    block.in = in;
    block.norm1_statistics = statistics();
    block.norm1 = operand(c.width, b.narrow_gradient);
    block.qkv = carver.Floats(tokens * c.qkv_width());
    block.attention = {.data = carver.Floats(tokens * c.query_width()),
                       .stride = c.query_width()};
    if (rounds) {
      block.attention.rounded = carver.Rounded(tokens * c.query_width());
    }
    block.log_sum_exp = carver.Floats(tokens * c.head_count);
    block.middle = carver.Floats(tokens * c.width);
    block.norm2_statistics = statistics();
    block.norm2 = operand(c.width, b.narrow_gradient);
    block.inner = carver.Floats(tokens * c.inner_columns());
    block.activated = operand(c.inner_width, b.wide_gradient);
    in = block.out = carver.Floats(tokens * c.width);
  }
  b.final_statistics = statistics();
  b.final_norm = operand(c.width, b.narrow_gradient);

  if (!c.is_gpt2()) {
    b.cosine = carver.Floats(sequence_length * c.head_width / 2);
    b.sine = carver.Floats(sequence_length * c.head_width / 2);
  }

  int64_t largest = 0;
  for (const Tensor& tensor : layout.tensors) {
    largest = std::max(largest, tensor.element_count);
  }
  b.tensor_gradient = carver.Floats(largest);
  for (float*& vector : b.vector_gradients) {
    vector = carver.Floats(std::max(wide, c.width));
  }

  b.head_slice_tokens = std::min(
      tokens, std::max<int64_t>(kHeadSliceLogits / c.vocabulary / 64 * 64, 64));
  b.logits = carver.Floats(b.head_slice_tokens * c.vocabulary);
  b.losses = carver.Floats(tokens);
  if (rounds) {
    b.rounded = carver.Rounded(
        std::max({tokens * wide, tokens * std::max(c.width, c.query_width()),
                  b.head_slice_tokens * c.vocabulary}));
  }

  b.evaluation_tokens = carver.Integers(tokens);
  b.evaluation_targets = carver.Integers(tokens);
  BlockActivations& e = b.evaluation;
  e.in = e.middle = e.out = b.residual_gradient;
  e.norm1 = {b.narrow_gradient, c.width, b.rounded};
  e.attention = {b.narrow_gradient, c.query_width(), b.rounded};
  e.norm2 = e.norm1;
  e.qkv = e.inner = b.wide_gradient;
  // SwiGLU's result takes the place of its gate.
  e.activated = {b.wide_gradient, c.inner_columns(), b.rounded};
  e.norm1_statistics = e.norm2_statistics = statistics();
  e.log_sum_exp = carver.Floats(tokens * c.head_count);

  const kernels::AttentionShape attention{
      .row_count = rows,
      .sequence_length = sequence_length,
      .head_count = c.head_count,
      .key_value_head_count = c.key_value_head_count,
      .head_width = c.head_width};
  b.workspace = carver.Floats(std::max(
      {kernels::AttentionWorkspace(device, attention),
       c.is_gpt2() ? kernels::LayerNormWorkspace(tokens, c.width)
                   : kernels::RmsNormWorkspace(tokens, c.width),
       c.is_gpt2() ? kernels::BiasGeluWorkspace(tokens, c.inner_width) : 0,
       kernels::ColumnSumsWorkspace(tokens, wide)}));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DecoderBuffers>> DecoderBuffers::Create(
    const ModelConfig& config, const Layout& layout, int64_t rows,
    int64_t sequence_length, const DecoderOptions& options,
    kernels::Device& device) {
  std::unique_ptr<DecoderBuffers> buffers(new DecoderBuffers());
  Carver counter(nullptr);
  Carve(config, layout, rows, sequence_length, options, device, counter,
        *buffers);
  auto memory = device.Allocate(counter.byte_count());
  if (!memory.ok()) {
    return Annotate(memory.status(),
                    absl::StrCat("activations of ", rows, " x ",
                                 sequence_length, " tokens"));
  }
  buffers->memory_ = *std::move(memory);
  Carver carver(buffers->memory_->data());
  Carve(config, layout, rows, sequence_length, options, device, carver,
        *buffers);
  return buffers;
}

}  // namespace lockstep
