// kernels/dropout.h, plainly.  For tests.
#ifndef KERNELS_DROPOUT_REFERENCE_H_
#define KERNELS_DROPOUT_REFERENCE_H_

#include <cstdint>

#include "kernels/dropout.h"

namespace lockstep::kernels {

// What element `i` of row `row` is multiplied by.
double DropoutFactorReference(const DropoutMask& mask, int64_t row, int64_t i);

}  // namespace lockstep::kernels

#endif  // KERNELS_DROPOUT_REFERENCE_H_
