// Threads with a name, as `top -H` and debuggers show it.
#ifndef COORDINATOR_SERVICE_NAMED_THREAD_H_
#define COORDINATOR_SERVICE_NAMED_THREAD_H_

#include <pthread.h>

#include <string>
#include <thread>
#include <utility>

namespace lockstep {

// `name`: at most 15 characters.
template <typename Function>
std::thread StartThread(std::string name, Function function) {
  return std::thread(
      [name = std::move(name), function = std::move(function)]() mutable {
        pthread_setname_np(pthread_self(), name.c_str());
        function();
      });
}

}  // namespace lockstep

#endif  // COORDINATOR_SERVICE_NAMED_THREAD_H_
