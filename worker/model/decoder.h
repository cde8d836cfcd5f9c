// A decoder-only language model on one device: loss and gradient of one
// micro-batch, by hand over the kernels.
//
// Everything is per micro-batch of a fixed shape, (rows, sequence_length):
//
//   Forward(tokens)          activations of the blocks are kept
//   Backward(sink)           loss, then gradients from the head to the
//                            embedding, handed to the sink as they come
//
// The gradient is of the *sum* of the token losses, not the mean: the step
// divides once, by the tokens of all its micro-batches.  Head, loss and the
// head's gradient are one pass over slices of rows, so that the logits of a
// micro-batch are never held whole; they count as backward.
//
// Which bits come out depends on the inputs, the shape and the device's numeric
// class; not on the number of threads or on what ran before.
#ifndef WORKER_MODEL_DECODER_H_
#define WORKER_MODEL_DECODER_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/layout.h"
#include "common/model_config.h"
#include "kernels/bfloat16.h"
#include "kernels/device.h"

namespace lockstep {

// Where a decoder finds its parameters.  Called on the thread that runs it.
class ParameterSource {
 public:
  // One unit's, in the order of the layout; device memory.
  struct Values {
    const float* values = nullptr;
    // The same rounded; null where products are of float32.
    const kernels::Bfloat16* rounded = nullptr;
  };

  virtual ~ParameterSource() = default;

  // The values stay what and where they are until Release.
  virtual absl::StatusOr<Values> Acquire(int unit) = 0;

  // As far as the stream is concerned, after what was enqueued until now.
  virtual absl::Status Release(int unit) = 0;
};

// Takes gradients while backward goes on.  Called on the thread that runs it.
class GradientSink {
 public:
  virtual ~GradientSink() = default;

  // One contribution to the gradient of tensor `tensor` (index into
  // Layout::tensors): (element_count) device memory, overwritten after the call
  // as far as the stream is concerned.  A tied token embedding gets two, the
  // head's first.
  virtual absl::Status Contribute(int tensor, const float* gradient) = 0;

  // Every contribution to the tensors of unit `unit` was made.  Units come in
  // the reverse of forward order.
  virtual absl::Status UnitDone(int unit) = 0;
};

// Of one micro-batch.
struct LossSum {
  double nats = 0;  // Token losses, each in float32, added in double in order.
  int64_t token_count = 0;  // Targets that count; may be 0.
};

// What Backward finds of a block's Forward; changes no bit.
enum class Recompute {
  kNone,   // Everything.
  kBlock,  // Its input alone; the rest is computed again.
};

// What products with weights multiply; attention's own are of float32 always.
// Sums, results, weights and everything else are float32.
enum class Products {
  kFloat32,
  // Both operands rounded to bfloat16: weights, activations and gradients.
  kBfloat16,
};

struct DecoderOptions {
  Products products = Products::kFloat32;

  Recompute recompute = Recompute::kNone;

  // Share of elements that training drops, 0 to below 1: with GPT-2 of the
  // embeddings' sum, of the attention's probabilities, and of what each part of
  // a block adds; with the others of the attention's probabilities.  Which ones
  // is a function of the seed, the sample, the place and the layer:
  // kernels/dropout_mask.h, with site = RandomPurpose::kDropout
  // + 256 x place + 65536 x layer, places counted from 1 as above.
  double dropout = 0;
  int64_t dropout_seed = 0;
};

class Decoder {
 public:
  // Everything it needs but parameters is allocated here, on the stream's
  // device.  `layout` must be MakeLayout(config); `stream` and `parameters`
  // must outlive this.
  //
  // Errors:
  //   InvalidArgument: a size is out of range; sequence_length exceeds
  //     config.position_max.
  //   ResourceExhausted: not enough memory.
  //   Unimplemented: the device has no bfloat16 products.
  static absl::StatusOr<std::unique_ptr<Decoder>> Create(
      const ModelConfig& config, const Layout& layout, int64_t rows,
      int64_t sequence_length, kernels::Stream& stream,
      ParameterSource& parameters, const DecoderOptions& options = {});
  virtual ~Decoder() = default;

  // Of device memory: activations, gradients on their way, logits, workspaces.
  virtual int64_t byte_count() const = 0;

  // Forward, Backward, Evaluate and Logits acquire and release every unit that
  // they read, as unit_calls.h says; on an error some may stay acquired.
  // Parameters must be the same in Backward as in its Forward.

  // tokens: (rows, sequence_length + 1) host memory, each below the vocabulary:
  //   the first sequence_length of a row go in, the last sequence_length are
  //   the targets.  Of one that does not count as a target the complement,
  //   ~token.  Copied.
  // first_sample: the sample of row 0, for dropout; the others follow.
  //
  // Errors, here and in the others: those of the source.
  virtual absl::Status Forward(const int32_t* tokens,
                               int64_t first_sample = 0) = 0;

  // Of the last Forward.  The loss is final when this returns.
  //
  // Errors: whatever `sink` returns.
  virtual absl::StatusOr<LossSum> Backward(GradientSink& sink) = 0;

  // Loss alone, without dropout; writes no activations that a Backward needs.
  // Arguments as Forward's, but only the first `row_count` rows are read and
  // count.
  virtual absl::StatusOr<LossSum> Evaluate(const int32_t* tokens,
                                           int64_t row_count) = 0;

  // Logits after the token at `position` of row 0.  tokens: (rows,
  // sequence_length) host memory; logits: (vocabulary) host memory.
  virtual absl::Status Logits(const int32_t* tokens, int64_t position,
                              float* logits) = 0;
};

}  // namespace lockstep

#endif  // WORKER_MODEL_DECODER_H_
