// What a rank hands to the others in a collective, in bytes of payload.
#ifndef COMMON_COLLECTIVE_BYTES_H_
#define COMMON_COLLECTIVE_BYTES_H_

#include <cstdint>

#include "common/layout.h"

namespace lockstep {

// All-reduces of up to this size take one round, between processes, in which
// every rank hands everything to every other: another round would cost more
// than the bytes that it saves.
inline constexpr int64_t kOneRoundBytes = 32 << 10;

// Sums of n 64-bit integers, of which a rank is left with a part of `part`.
inline int64_t ReduceScatterBytes(int64_t n, int64_t part, int rank,
                                  int world) {
  if (world == 1) return 0;
  return (n - PartOf({0, n}, part, rank).element_count) *
         int64_t{sizeof(int64_t)};
}

// n elements, of which each rank has its shard.
inline int64_t AllGatherBytes(int64_t n, int64_t element_bytes, int rank,
                              int world) {
  return (world - 1) * ShardOf({0, n}, rank, world).element_count *
         element_bytes;
}

// n 64-bit integers.
inline int64_t AllReduceBytes(int64_t n, int rank, int world) {
  const int64_t bytes = n * int64_t{sizeof(int64_t)};
  if (bytes <= kOneRoundBytes) return (world - 1) * bytes;
  return ReduceScatterBytes(n, ShardSize(n, world), rank, world) +
         AllGatherBytes(n, sizeof(int64_t), rank, world);
}

}  // namespace lockstep

#endif  // COMMON_COLLECTIVE_BYTES_H_
