// The CPU as a device: host memory, and a stream that runs work at once.
#ifndef KERNELS_CPU_DEVICE_H_
#define KERNELS_CPU_DEVICE_H_

#include "kernels/cpu/thread_pool.h"
#include "kernels/device.h"

namespace lockstep::kernels::cpu {

// The threads that a stream of the CPU backend computes with.  `stream` must be
// of that backend.
ThreadPool& PoolOf(Stream& stream);

}  // namespace lockstep::kernels::cpu

#endif  // KERNELS_CPU_DEVICE_H_
