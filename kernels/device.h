// Device memory, streams and events: the seam between what is computed and
// where.
//
// A stream is an ordered queue of work on one device.  Kernels (the other
// headers of this folder) enqueue on a stream and return; the result is there
// once the stream has got that far.  Streams are independent of each other but
// for events.  The CPU backend runs work at once, on the calling thread and the
// device's threads, so that everything enqueued is already done on return; code
// must not rely on that, but order by events and synchronise at step
// boundaries, as a GPU needs.
//
// A Device is thread-safe; a Stream or an Event belongs to one thread at a
// time.
#ifndef KERNELS_DEVICE_H_
#define KERNELS_DEVICE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep::kernels {

class Device;

enum class Backend { kCpu };

// Device memory, given back on destruction.  Starts at a multiple of 64 bytes;
// filled with zeros.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual void* data() = 0;
  virtual int64_t byte_count() const = 0;
  template <typename T>
  T* as() {
    return static_cast<T*>(data());
  }
};

// A point in a stream's work.
class Event {
 public:
  virtual ~Event() = default;

  // Blocks the calling thread until the recorded point is reached.
  virtual absl::Status Synchronize() = 0;
};

class Stream {
 public:
  virtual ~Stream() = default;
  virtual Device& device() = 0;
  virtual Backend backend() const = 0;

  // Marks the point reached so far.  Record before another stream Waits.
  virtual absl::Status Record(Event& event) = 0;

  // Later work of this stream begins once the recorded point is reached.
  virtual absl::Status Wait(Event& event) = 0;

  // Blocks the calling thread until all work enqueued so far is done, and
  // returns the first error of it.
  virtual absl::Status Synchronize() = 0;

  // `bytes` of host memory to device memory; the host memory must stay as it is
  // until the stream has got that far.  Likewise the others.
  virtual absl::Status CopyToDevice(void* device_to, const void* host_from,
                                    int64_t bytes) = 0;
  virtual absl::Status CopyToHost(void* host_to, const void* device_from,
                                  int64_t bytes) = 0;
  virtual absl::Status CopyOnDevice(void* to, const void* from,
                                    int64_t bytes) = 0;
  virtual absl::Status Zero(void* device_memory, int64_t bytes) = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual Backend backend() const = 0;

  // For people: the processor's or GPU's model name.
  virtual std::string model_name() const = 0;

  // Devices of one class compute the same bits: `cpu/avx512/onednn-2.6.3`.
  virtual std::string numeric_class() const = 0;

  // Whether it multiplies bfloat16.
  virtual bool has_bfloat16() const = 0;

  // Bytes of the device's memory (on a CPU, the host's or its container's), or
  // of what this may have of it.
  virtual int64_t memory_bytes() const = 0;

  // Threads that compute; 0 where the question makes no sense.
  virtual int thread_count() const = 0;

  // Bytes of all buffers that are there now.
  virtual int64_t allocated_bytes() const = 0;

  // Errors:
  //   ResourceExhausted: not that much memory is free, or may be had.
  virtual absl::StatusOr<std::unique_ptr<Buffer>> Allocate(int64_t bytes) = 0;
  virtual absl::StatusOr<std::unique_ptr<Stream>> CreateStream() = 0;
  virtual absl::StatusOr<std::unique_ptr<Event>> CreateEvent() = 0;
};

// The CPU, computing with `thread_count` threads (the caller's among them), in
// at most `memory_bytes_max` bytes of memory; 0: whatever there is.
//
// Errors:
//   InvalidArgument: thread_count is not 1 to 1,024, or memory_bytes_max is
//     negative.
//   Unimplemented: the processor lacks AVX2 and FMA.
absl::StatusOr<std::unique_ptr<Device>> CreateCpuDevice(
    int thread_count, int64_t memory_bytes_max = 0);

}  // namespace lockstep::kernels

#endif  // KERNELS_DEVICE_H_
