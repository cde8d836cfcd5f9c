// Sums of 64-bit integers that are known to fit 32 bits, at half the traffic.
//
// Two integers a and b travel as the one word a + 2^32 b.  Sums of such words,
// modulo 2^64, are sum(a) + 2^32 sum(b); where both sums are in [-2^31, 2^31)
// they can be read off again, whatever the additions in between were like.
#ifndef WORKER_PARALLEL_NARROW_SUM_H_
#define WORKER_PARALLEL_NARROW_SUM_H_

#include <cstdint>

namespace lockstep {

// The largest |values[i]|, i below n; 0 for none.  -2^63 must not be among
// them.
int64_t LargestMagnitude(const int64_t* values, int64_t n);

// Sums of which the ranks' largest magnitudes add up to less than this fit.
inline constexpr int64_t kNarrowSumLimit = int64_t{1} << 31;

// Words that n values travel as.
inline int64_t NarrowWordCount(int64_t n) { return (n + 1) / 2; }

// Packs values[0, n), in place, to values[0, NarrowWordCount(n)).
void PackNarrow(int64_t* values, int64_t n);

// The inverse, on sums of packed words.
void UnpackNarrow(int64_t* words, int64_t n);

}  // namespace lockstep

#endif  // WORKER_PARALLEL_NARROW_SUM_H_
