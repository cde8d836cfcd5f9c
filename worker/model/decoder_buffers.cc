#include "worker/model/decoder_buffers.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace lockstep {

absl::StatusOr<std::unique_ptr<DecoderBuffers>> DecoderBuffers::Create(
    const ModelConfig& config, const Layout& layout, int64_t rows,
    int64_t sequence_length, const DecoderOptions& options,
    kernels::Device& device) {
  const DecoderShape shape = {
      .rows = rows,
      .sequence_length = sequence_length,
      .bfloat16 = options.products == Products::kBfloat16,
      .recomputes_blocks = options.recompute == Recompute::kBlock,
      .drops = options.dropout > 0,
      .thread_count = device.thread_count()};
  std::unique_ptr<DecoderBuffers> buffers(new DecoderBuffers());
  const DecoderBytes bytes =
      PlaceDecoderArrays(config, layout, shape, nullptr, *buffers);
  auto memory = device.Allocate(bytes.sum());
  if (!memory.ok()) {
    return Annotate(memory.status(),
                    absl::StrCat("activations of ", rows, " x ",
                                 sequence_length, " tokens"));
  }
  buffers->memory_ = *std::move(memory);
  PlaceDecoderArrays(config, layout, shape, buffers->memory_->data(), *buffers);
  return buffers;
}

}  // namespace lockstep
