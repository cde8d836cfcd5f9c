// How much memory this machine has, and has left.
#ifndef KERNELS_CPU_MEMORY_H_
#define KERNELS_CPU_MEMORY_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace lockstep::kernels::cpu {

struct HostMemory {
  int64_t total_bytes = 0;
  // What can be taken without swapping.
  int64_t available_bytes = 0;
};

// From the contents of /proc/meminfo and of a control group's memory.max and
// memory.current (version 2; empty where there is none, "max" for no limit).
// Zeros where meminfo does not say.
HostMemory ParseHostMemory(absl::string_view meminfo,
                           absl::string_view group_max,
                           absl::string_view group_current);

// Of this machine, now.
HostMemory ReadHostMemory();

}  // namespace lockstep::kernels::cpu

#endif  // KERNELS_CPU_MEMORY_H_
