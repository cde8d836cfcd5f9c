// The arithmetic of reductions: one rank's integers into another's.
#ifndef WORKER_COMM_ELEMENTWISE_H_
#define WORKER_COMM_ELEMENTWISE_H_

#include <cstdint>

namespace lockstep {

enum class Reduction { kSum, kMax };

// to[i] = to[i] + from[i] (modulo 2^64), or the larger of the two.  The ranges
// must not overlap.
void ReduceInto(Reduction reduction, int64_t* to, const int64_t* from,
                int64_t n);

}  // namespace lockstep

#endif  // WORKER_COMM_ELEMENTWISE_H_
