// Fresh weights.
#ifndef WORKER_CHECKPOINT_INITIAL_WEIGHTS_H_
#define WORKER_CHECKPOINT_INITIAL_WEIGHTS_H_

#include <cstdint>

#include "common/layout.h"
#include "common/model_config.h"

namespace lockstep {

// Fills the values of unit `unit`, (unit.range.element_count), as the family is
// initialised:
//
//   matrices                 N(0, initializer_range^2)
//   GPT-2's projections      N(0, initializer_range^2 / (2 layer_count))
//   that end a block's parts
//   norm weights             1
//   biases, padding          0
//
// Normal numbers come from Philox by the transform of Box and Muller ("A note
// on the generation of random normal deviates", 1958) in double, rounded to
// float; none is further from 0 than 6.8 standard deviations.  Each element is
// a function of `seed`, its tensor's index in `layout` and its own index in the
// tensor, and of nothing else; logarithm, sine and cosine are our own
// (common/portable_math.h) and IEEE defines the square root, so the bits are
// the same on every machine.
//
// `layout` must be MakeLayout(config).  About 30 ns an element.
void InitializeUnit(const ModelConfig& config, const Layout& layout,
                    int64_t seed, int unit, float* values);

}  // namespace lockstep

#endif  // WORKER_CHECKPOINT_INITIAL_WEIGHTS_H_
