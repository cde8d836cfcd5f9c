// The arrays that a decoder needs for a micro-batch, and where they are in one
// piece of memory.
#ifndef COMMON_DECODER_ARRAYS_H_
#define COMMON_DECODER_ARRAYS_H_

#include <array>
#include <cstdint>
#include <vector>

#include "common/bfloat16.h"
#include "common/layout.h"
#include "common/model_config.h"

namespace lockstep {

// What decides the sizes, beside the model.
struct DecoderShape {
  int64_t rows = 0;  // Sequences of a micro-batch.
  int64_t sequence_length = 0;
  bool bfloat16 = false;           // Operands of products are rounded.
  bool recomputes_blocks = false;  // Only a block's input and output are kept.
  bool drops = false;              // There is dropout.
  int thread_count = 1;            // Of the CPU that computes.

  int64_t tokens() const { return rows * sequence_length; }
};

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
  Bfloat16* rounded = nullptr;
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

struct DecoderArrays {
  // Written by Forward, read by Backward.
  int32_t* tokens = nullptr;   // (tokens)
  int32_t* targets = nullptr;  // (tokens)
  // With recomputes_blocks all but `in` and `out` is one memory for all blocks.
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
  Bfloat16* rounded = nullptr;

  // The head's, a slice of rows at a time.
  int64_t head_slice_tokens = 0;
  float* logits = nullptr;  // (head_slice_tokens, vocabulary)
  float* losses = nullptr;  // (tokens)

  // For forward without backward: on memory of Backward's, and little more.
  int32_t* evaluation_tokens = nullptr;
  int32_t* evaluation_targets = nullptr;
  BlockActivations evaluation;

  float* workspace = nullptr;  // Of whichever kernel runs.
};

// What an array is for.
enum class DecoderPart {
  kActivations,  // Kept from forward for backward.
  kGradients,    // On their way, in backward.
  kLogits,
  kWorkspace,  // Of kernels.
};
inline constexpr int kDecoderPartCount = 4;

// Bytes of each part.
struct DecoderBytes {
  std::array<int64_t, kDecoderPartCount> parts = {};
  int64_t& operator[](DecoderPart part) {
    return parts[static_cast<int>(part)];
  }
  int64_t operator[](DecoderPart part) const {
    return parts[static_cast<int>(part)];
  }
  int64_t sum() const;
};

// What kernels want of workspace: the larger of these, the latter times the
// threads.
struct DecoderWorkspace {
  int64_t shared_bytes = 0;
  int64_t thread_bytes = 0;
};
DecoderWorkspace WorkspaceOf(const ModelConfig& config,
                             const DecoderShape& shape);

// Sets `arrays` to their places in `memory`, which begins at a multiple of 64
// bytes; with null it only counts, and the pointers are null.
DecoderBytes PlaceDecoderArrays(const ModelConfig& config, const Layout& layout,
                                const DecoderShape& shape, void* memory,
                                DecoderArrays& arrays);

// Rows of logits at a time, of `tokens`: enough for fast products with any
// vocabulary, and a function of the model alone, since how a weight's gradient
// is summed over slices decides its bits.
int64_t HeadSliceTokens(int64_t vocabulary, int64_t tokens);

}  // namespace lockstep

#endif  // COMMON_DECODER_ARRAYS_H_
