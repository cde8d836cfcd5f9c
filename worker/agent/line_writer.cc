#include "worker/agent/line_writer.h"

#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace lockstep {
namespace {

// How long a wait for the file lasts before the end is looked for.
constexpr int kPollMilliseconds = 50;

}  // namespace

LineWriter::LineWriter(int fd, std::function<void()> on_room)
    : fd_(fd), on_room_(std::move(on_room)), thread_([this] { Run(); }) {
  pthread_setname_np(thread_.native_handle(), "line-writer");
}

LineWriter::~LineWriter() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.Signal();
  }
  thread_.join();
}

void LineWriter::Write(absl::string_view prefix, absl::string_view line) {
  MutexLock lock(&mutex_);
  waiting_.append(prefix.data(), prefix.size());
  waiting_.append(line.data(), line.size());
  waiting_.push_back('\n');
  changed_.Signal();
}

bool LineWriter::full() const {
  MutexLock lock(&mutex_);
  return waiting_.size() > kWaitingBytesMax;
}

void LineWriter::Run() {
  for (;;) {
    // Whole lines up to what a pipe takes without blocking once it polls
    // writable, and in one piece; a longer line alone.
    std::string piece;
    bool has_room = false;
    bool stopping = false;
    {
      MutexLock lock(&mutex_);
      while (waiting_.empty() && !stopping_) changed_.Wait(&mutex_);
      if (waiting_.empty()) return;
      stopping = stopping_;
      size_t end = waiting_.rfind('\n', PIPE_BUF - 1);
      if (end == std::string::npos) end = waiting_.find('\n');
      const bool was_full = waiting_.size() > kWaitingBytesMax;
      piece = waiting_.substr(0, end + 1);
      waiting_.erase(0, end + 1);
      has_room = was_full && waiting_.size() <= kWaitingBytesMax;
    }
    if (has_room) on_room_();
    for (size_t written = 0; written < piece.size();) {
      pollfd ready{fd_, POLLOUT, 0};
      const int rc = poll(&ready, 1, stopping ? 0 : kPollMilliseconds);
      if (rc == 0) {
        if (stopping) return;  // Nobody reads, and nobody waits for it.
        MutexLock lock(&mutex_);
        stopping = stopping_;
        continue;
      }
      const ssize_t n =
          write(fd_, piece.data() + written,
                std::min<size_t>(piece.size() - written, PIPE_BUF));
      if (n > 0) {
        written += static_cast<size_t>(n);
      } else if (n < 0 && errno != EINTR && errno != EAGAIN) {
        break;  // Nobody listens; there is nobody to tell.
      }
    }
  }
}

}  // namespace lockstep
