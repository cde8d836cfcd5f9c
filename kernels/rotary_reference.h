// kernels/rotary.h in double precision, plainly.
#ifndef KERNELS_ROTARY_REFERENCE_H_
#define KERNELS_ROTARY_REFERENCE_H_

#include <vector>

#include "kernels/rotary.h"

namespace lockstep::kernels {

// `x` turned; what lies between tokens stays.
std::vector<double> RotateReference(const RotaryShape& shape,
                                    RotaryDirection direction,
                                    const std::vector<double>& cosine,
                                    const std::vector<double>& sine,
                                    std::vector<double> x);

}  // namespace lockstep::kernels

#endif  // KERNELS_ROTARY_REFERENCE_H_
