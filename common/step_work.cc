#include "common/step_work.h"

namespace lockstep {

SequenceWork WorkOfSequence(const ModelConfig& c, int64_t sequence_length,
                            bool recomputes_blocks) {
  const auto length = static_cast<double>(sequence_length);
  const auto width = static_cast<double>(c.width);
  // Multiplications with an addition each.
  const double block = width * static_cast<double>(c.qkv_width()) +
                       static_cast<double>(c.query_width()) * width +
                       width * static_cast<double>(c.inner_columns()) +
                       static_cast<double>(c.inner_width) * width;
  const double pairs = length * (length + 1) / 2;
  const double attention = pairs * static_cast<double>(c.query_width());
  const auto layers = static_cast<double>(c.layer_count);
  const double head = length * static_cast<double>(c.vocabulary) * width;

  SequenceWork work;
  work.forward_flops = 2 * layers * (length * block + 2 * attention);
  work.backward_flops =
      2 * (layers * (2 * length * block + 5 * attention) + 3 * head);
  if (recomputes_blocks) work.recompute_flops = work.forward_flops;
  return work;
}

}  // namespace lockstep
