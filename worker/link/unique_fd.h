// A file descriptor with one owner.
#ifndef WORKER_LINK_UNIQUE_FD_H_
#define WORKER_LINK_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

namespace lockstep {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      Close();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~UniqueFd() { Close(); }

  int get() const { return fd_; }  // -1 when there is none.
  bool has_value() const { return fd_ >= 0; }

  void Close() {
    // Not again on EINTR: Linux has closed it.
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

}  // namespace lockstep

#endif  // WORKER_LINK_UNIQUE_FD_H_
