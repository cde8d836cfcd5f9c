// The arithmetic of reductions, one rank's integers into another's, and copies
// between ranks.
#ifndef WORKER_COMM_ELEMENTWISE_H_
#define WORKER_COMM_ELEMENTWISE_H_

#include <cstdint>

namespace lockstep {

enum class Reduction { kSum, kMax };

// to[i] = to[i] + from[i] (modulo 2^64), or the larger of the two.  The ranges
// must not overlap.
void ReduceInto(Reduction reduction, int64_t* to, const int64_t* from,
                int64_t n);

// As memcpy, for what another processor reads next: past this one's caches,
// from which fetching it would take longer than from memory.  Complete on
// return, for who is told by an atomic.  `to` is a multiple of 16.
void CopyForOthers(void* to, const void* from, int64_t bytes);

}  // namespace lockstep

#endif  // WORKER_COMM_ELEMENTWISE_H_
