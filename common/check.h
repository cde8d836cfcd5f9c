// Fatal checks, for what we got wrong; what the world does is a Status.
#ifndef COMMON_CHECK_H_
#define COMMON_CHECK_H_

#include <cstdio>
#include <cstdlib>

// Ends the process with the place and the condition when `condition` is false.
// In every build: a wrong state must not reach a checkpoint.
#define LS_CHECK(condition)                                                 \
  do {                                                                      \
    if (!(condition)) [[unlikely]] {                                        \
      std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, \
                   #condition);                                             \
      std::abort();                                                         \
    }                                                                       \
  } while (false)

#endif  // COMMON_CHECK_H_
