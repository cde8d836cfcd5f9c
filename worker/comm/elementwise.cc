#include "worker/comm/elementwise.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstring>

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

void CopyForOthers(void* to, const void* from, int64_t bytes) {
#if defined(__x86_64__)
  constexpr int64_t kVector = sizeof(__m128i);
  constexpr int64_t kLine = 4 * kVector;
  auto* out = static_cast<char*>(to);
  const auto* in = static_cast<const char*>(from);
  const auto load = [](const char* at) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  };
  const auto store = [](char* at, __m128i value) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(at), value);
  };
  for (; bytes >= kLine; bytes -= kLine, out += kLine, in += kLine) {
    const __m128i a = load(in);
    const __m128i b = load(in + kVector);
    const __m128i c = load(in + 2 * kVector);
    const __m128i d = load(in + 3 * kVector);
    store(out, a);
    store(out + kVector, b);
    store(out + 2 * kVector, c);
    store(out + 3 * kVector, d);
  }
  std::memcpy(out, in, bytes);
  _mm_sfence();
#else
  std::memcpy(to, from, bytes);
#endif
}

}  // namespace lockstep
