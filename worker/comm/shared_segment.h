// Memory that processes of one host share by passing a descriptor of it.
//
// A memfd: it has no name, takes no room in /dev/shm, and is gone with the last
// process that maps it, however that ends.  Its size is sealed, so that nobody
// can take away what another reads.
#ifndef WORKER_COMM_SHARED_SEGMENT_H_
#define WORKER_COMM_SHARED_SEGMENT_H_

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "worker/link/unique_fd.h"

namespace lockstep {

class SharedSegment {
 public:
  SharedSegment() = default;

  // A new one, of zeros.  Its memory is taken at once: later it would be a
  // signal that says that there is none.
  //
  // Errors:
  //   ResourceExhausted: there is not so much memory.
  //   Unavailable: this system has no such memory, or does not allow it.
  static absl::StatusOr<SharedSegment> Create(int64_t bytes);

  // Another process's, of which only [0, writable_bytes) can be written.
  //
  // Errors:
  //   InvalidArgument: `fd` is not of what Create makes with `bytes`.
  //   Unavailable: it cannot be mapped.
  static absl::StatusOr<SharedSegment> Map(UniqueFd fd, int64_t bytes,
                                           int64_t writable_bytes);

  SharedSegment(SharedSegment&& other) noexcept { *this = std::move(other); }
  SharedSegment& operator=(SharedSegment&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~SharedSegment();

  // Starts at a page.
  char* data() const { return data_; }

  // Of one that was created, to be passed on; else -1.
  int fd() const { return fd_.get(); }

 private:
  SharedSegment(UniqueFd fd, char* data, int64_t bytes)
      : fd_(std::move(fd)), data_(data), bytes_(bytes) {}

  UniqueFd fd_;
  char* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace lockstep

#endif  // WORKER_COMM_SHARED_SEGMENT_H_
