// kernels/bfloat16.h by its definition, for tests.
#ifndef KERNELS_BFLOAT16_REFERENCE_H_
#define KERNELS_BFLOAT16_REFERENCE_H_

#include "kernels/bfloat16.h"

namespace lockstep::kernels {

Bfloat16 RoundToBfloat16Reference(float x);

}  // namespace lockstep::kernels

#endif  // KERNELS_BFLOAT16_REFERENCE_H_
