// Which elements dropout drops: a function of what they are for, so that
// nothing is stored, backward makes the mask again, and no split of samples
// over micro-batches or ranks changes it.
//
// Element i of sample n is kept when word i % 4 of the Philox block
//
//   counter = (i / 4, n low, n high, site), key = seed
//
// (common/philox.h) is at least rate x 2^32, rounded to a whole number.
#ifndef KERNELS_DROPOUT_MASK_H_
#define KERNELS_DROPOUT_MASK_H_

#include <cstdint>

namespace lockstep::kernels {

struct DropoutMask {
  int64_t seed = 0;
  uint32_t site = 0;         // What for; the last word of the counter.
  int64_t first_sample = 0;  // Row r is sample first_sample + r.
  double rate = 0;           // 0 to below 1.
};

}  // namespace lockstep::kernels

#endif  // KERNELS_DROPOUT_MASK_H_
