// What a model's training computes, in floating-point operations of its matrix
// products: a multiplication and an addition are two.  All else is small beside
// them.
#ifndef COMMON_STEP_WORK_H_
#define COMMON_STEP_WORK_H_

#include <cstdint>

#include "common/model_config.h"

namespace lockstep {

// Of one sequence.
struct SequenceWork {
  double forward_flops = 0;
  double backward_flops = 0;
  double recompute_flops = 0;  // Of blocks, in backward again; with recompute.

  double total_flops() const {
    return forward_flops + backward_flops + recompute_flops;
  }
};

// Products with weights: backward has two for each of forward's, the head's
// logits being made in backward alone.  Attention's: of each position with
// those up to it, two in forward and five in backward.
SequenceWork WorkOfSequence(const ModelConfig& config, int64_t sequence_length,
                            bool recomputes_blocks);

}  // namespace lockstep

#endif  // COMMON_STEP_WORK_H_
