// Threads that can be told apart in a debugger, in `top -H` and in a trace.
#ifndef WORKER_COMM_NAMED_THREAD_H_
#define WORKER_COMM_NAMED_THREAD_H_

#include <pthread.h>

#include <thread>
#include <utility>

namespace lockstep {

// Runs `body()` on a new thread.  The kernel keeps 15 characters of `name`.
template <typename Body>
std::thread StartThread(const char* name, Body body) {
  return std::thread([name, body = std::move(body)]() mutable {
    pthread_setname_np(pthread_self(), name);
    body();
  });
}

}  // namespace lockstep

#endif  // WORKER_COMM_NAMED_THREAD_H_
