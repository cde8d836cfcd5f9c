// Device memory of a decoder: where everything is that a micro-batch needs.
#ifndef WORKER_MODEL_DECODER_BUFFERS_H_
#define WORKER_MODEL_DECODER_BUFFERS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/layout.h"
#include "common/model_config.h"
#include "kernels/attention.h"
#include "kernels/bfloat16.h"
#include "kernels/device.h"
#include "worker/model/decoder.h"

namespace lockstep {

// What a normalisation leaves for its backward; (tokens) each.
struct NormStatistics {
  float* mean = nullptr;  // Of layer norm.
  float* rstd = nullptr;
};

// What a product with a weight reads: rows `stride` apart, and with bfloat16
// products the same rounded, without gaps.
struct Operand {
  float* data = nullptr;
  int64_t stride = 0;
  kernels::Bfloat16* rounded = nullptr;
};

// Of one block, in the order of forward; (tokens, ...) each.  With bfloat16
// products `data` of the operands that backward needs rounded only is one
// memory for all blocks.
struct BlockActivations {
  float* in = nullptr;  // (width); the previous block's out.
  NormStatistics norm1_statistics;
  Operand norm1;                 // (width)
  float* qkv = nullptr;          // (qkv_width), turned where rotary.
  Operand attention;             // (query_width), before its output product.
  float* log_sum_exp = nullptr;  // (head_count)
  float* middle = nullptr;       // (width): in + attention's part.
  NormStatistics norm2_statistics;
  Operand norm2;  // (width)
  // (inner_columns): before GELU and its bias; or gate and up of SwiGLU, which
  // backward overwrites with their gradient.
  float* inner = nullptr;
  Operand activated;     // (inner_width)
  float* out = nullptr;  // (width): middle + the feed-forward part.
};

// All pointers are into one allocation.
class DecoderBuffers {
 public:
  // For micro-batches of `rows` sequences of `sequence_length` tokens.
  //
  // Errors:
  //   ResourceExhausted: not enough memory.
  static absl::StatusOr<std::unique_ptr<DecoderBuffers>> Create(
      const ModelConfig& config, const Layout& layout, int64_t rows,
      int64_t sequence_length, const DecoderOptions& options,
      kernels::Device& device);

  int64_t byte_count() const { return memory_->byte_count(); }

  // Written by Forward, read by Backward.
  int32_t* tokens = nullptr;   // (tokens)
  int32_t* targets = nullptr;  // (tokens)
  // With Recompute::kBlock all but `in` and `out` is one memory for all blocks.
  std::vector<BlockActivations> blocks;
  NormStatistics final_statistics;
  Operand final_norm;  // (tokens, width)

  // Of rotary positions: (sequence_length, head_width / 2) each.
  float* cosine = nullptr;
  float* sine = nullptr;

  // Backward's own.
  float* narrow_gradient = nullptr;  // (tokens, max(width, query_width))
  float* wide_gradient = nullptr;    // (tokens, max(qkv_width, inner_columns))
  float* residual_gradient = nullptr;  // (tokens, width)
  float* dropped_gradient = nullptr;   // (tokens, width); GPT-2 with dropout.
  float* tensor_gradient = nullptr;    // (elements of the largest tensor)
  // (max(width, qkv_width, inner_columns)) each: of vectors, such as a bias.
  float* vector_gradients[3] = {};

  // With bfloat16 products: gradients or operands on their way into one, as
  // long as the longest of them.
  kernels::Bfloat16* rounded = nullptr;

  // The head's, a slice of rows at a time.
  int64_t head_slice_tokens = 0;
  float* logits = nullptr;  // (head_slice_tokens, vocabulary)
  float* losses = nullptr;  // (tokens)

  // For forward without backward: on memory of Backward's, and little more.
  int32_t* evaluation_tokens = nullptr;
  int32_t* evaluation_targets = nullptr;
  BlockActivations evaluation;

  float* workspace = nullptr;  // Of whichever kernel runs.

 private:
  DecoderBuffers() = default;

  std::unique_ptr<kernels::Buffer> memory_;
};

}  // namespace lockstep

#endif  // WORKER_MODEL_DECODER_BUFFERS_H_
