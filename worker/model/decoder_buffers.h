// Device memory of a decoder: where everything is that a micro-batch needs.
#ifndef WORKER_MODEL_DECODER_BUFFERS_H_
#define WORKER_MODEL_DECODER_BUFFERS_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "common/decoder_arrays.h"
#include "common/layout.h"
#include "common/model_config.h"
#include "kernels/device.h"
#include "worker/model/decoder.h"

namespace lockstep {

// All pointers are into one allocation.
class DecoderBuffers : public DecoderArrays {
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

 private:
  DecoderBuffers() = default;

  std::unique_ptr<kernels::Buffer> memory_;
};

}  // namespace lockstep

#endif  // WORKER_MODEL_DECODER_BUFFERS_H_
