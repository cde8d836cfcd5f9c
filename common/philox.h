// Randomness without state: a number is a function of what it is for.
//
// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy
// as 1, 2, 3", SC 2011).  The key is the job's seed; the counter says what the
// number is for: its purpose and two coordinates.  The same coordinates always
// give the same bits, on any device and at any world size.
#ifndef COMMON_PHILOX_H_
#define COMMON_PHILOX_H_

#include <array>
#include <cstdint>

namespace lockstep {

// What random numbers are drawn for.  Values are part of the bits: never
// renumber.
enum class RandomPurpose : uint32_t {
  kInitialWeights = 1,  // Coordinates: tensor index, element / 4.
  kSampleOrder = 2,     // Coordinates: epoch, Feistel round and half.
  kSampling = 3,        // Coordinates: position of the generated token, 0.
  kDropout = 4,         // See kernels/dropout_mask.h, worker/model/decoder.h.
};

using PhiloxBlock = std::array<uint32_t, 4>;

// The raw bijection: 10 rounds.
constexpr PhiloxBlock Philox4x32(PhiloxBlock counter,
                                 std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(p0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// Four words for `purpose` at coordinates (a, b).  `a` must be below 2^32.
constexpr PhiloxBlock RandomBlock(int64_t seed, RandomPurpose purpose,
                                  uint32_t a, uint64_t b) {
  const auto s = static_cast<uint64_t>(seed);
  return Philox4x32({static_cast<uint32_t>(b), static_cast<uint32_t>(b >> 32),
                     a, static_cast<uint32_t>(purpose)},
                    {static_cast<uint32_t>(s), static_cast<uint32_t>(s >> 32)});
}

// Uniform in (0, 1): the middle of one of 2^32 equal parts.  Never 0 or 1.
constexpr double UniformFrom(uint32_t word) { return (word + 0.5) * 0x1p-32; }

}  // namespace lockstep

#endif  // COMMON_PHILOX_H_
