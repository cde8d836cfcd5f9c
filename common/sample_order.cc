#include "common/sample_order.h"

#include <bit>

#include "common/check.h"
#include "common/philox.h"

namespace lockstep {
namespace {

// Four are enough for large domains; on a few samples, where a round function
// has few forms, it takes more until every order is about as likely as any
// other.  The round's number has 4 bits of the coordinate.
constexpr int kRounds = 16;

// A permutation of [0, 2^(2 half_bits)), half_bits at most 31.
class KeyedPermutation {
 public:
  KeyedPermutation(int64_t seed, uint64_t epoch, int half_bits)
      : seed_(seed), epoch_(epoch), half_bits_(half_bits) {}

  uint64_t operator()(uint64_t x) const {
    const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
    uint64_t left = x >> half_bits_;
    uint64_t right = x & mask;
    for (int round = 0; round < kRounds; ++round) {
      const uint64_t next = left ^ (Block(round, right)[0] & mask);
      left = right;
      right = next;
    }
    const uint64_t y = left << half_bits_ | right;
    // Rounds on halves of two bits or more are even permutations: without
    // this, half of the time, a few samples would favour some orders.
    return y < 2 ? y ^ (Block(0, 0)[1] & 1) : y;
  }

 private:
  PhiloxBlock Block(uint64_t round, uint64_t half) const {
    // Epoch, round and half in one 96-bit coordinate, none overlapping: the
    // epoch is below 2^61 when there are two samples or more.
    const uint64_t b = (epoch_ >> 32) << 35 | round << 31 | half;
    return RandomBlock(seed_, RandomPurpose::kSampleOrder,
                       static_cast<uint32_t>(epoch_), b);
  }

  int64_t seed_;
  uint64_t epoch_;
  int half_bits_;
};

}  // namespace

int64_t SampleIndex(int64_t seed, SampleOrder order, int64_t sample_count,
                    int64_t global_index) {
  LS_CHECK(1 <= sample_count && sample_count <= kSampleCountMax);
  LS_CHECK(0 <= global_index && global_index < kSampleCountMax);
  const int64_t epoch = global_index / sample_count;
  const int64_t position = global_index % sample_count;
  if (order == SampleOrder::kSequential || sample_count == 1) return position;

  const auto count = static_cast<uint64_t>(sample_count);
  const int half_bits = (std::bit_width(count - 1) + 1) / 2;
  const KeyedPermutation permute(seed, static_cast<uint64_t>(epoch), half_bits);
  auto x = static_cast<uint64_t>(position);
  // The cycle through `position` returns to it, which is below `count`: the
  // walk ends.  The domain is less than four times as large as `count`.
  do {
    x = permute(x);
  } while (x >= count);
  return static_cast<int64_t>(x);
}

}  // namespace lockstep
