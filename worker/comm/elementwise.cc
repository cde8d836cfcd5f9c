#include "worker/comm/elementwise.h"

#include <algorithm>

namespace lockstep {

void ReduceInto(Reduction reduction, int64_t* __restrict to,
                const int64_t* __restrict from, int64_t n) {
  switch (reduction) {
    case Reduction::kSum:
      // Unsigned, where wrapping is defined.
      for (int64_t i = 0; i < n; ++i) {
        to[i] = static_cast<int64_t>(static_cast<uint64_t>(to[i]) +
                                     static_cast<uint64_t>(from[i]));
      }
      return;
    case Reduction::kMax:
      for (int64_t i = 0; i < n; ++i) to[i] = std::max(to[i], from[i]);
      return;
  }
}

}  // namespace lockstep
