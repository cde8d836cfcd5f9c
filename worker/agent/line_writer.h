// Writes lines to a file that may be slow, or stuck, on a thread of its own.
#ifndef WORKER_AGENT_LINE_WRITER_H_
#define WORKER_AGENT_LINE_WRITER_H_

#include <cstddef>
#include <functional>
#include <string>
#include <thread>

#include "absl/strings/string_view.h"
#include "common/mutex.h"

namespace lockstep {

// Thread-safe.
class LineWriter {
 public:
  // How much may wait to be written before full() asks callers to hold back;
  // what is written all the same is kept.
  static constexpr size_t kWaitingBytesMax = 256 << 10;

  // `fd` must stay open for the life of this.  `on_room` is called, on the
  // thread of this, when full() has become false.
  LineWriter(int fd, std::function<void()> on_room);

  // Writes what the file takes at once, and throws the rest away.
  ~LineWriter();

  // Queues `prefix`, `line` and an end of line.
  void Write(absl::string_view prefix, absl::string_view line);

  bool full() const;

 private:
  void Run();

  const int fd_;
  const std::function<void()> on_room_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::string waiting_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

}  // namespace lockstep

#endif  // WORKER_AGENT_LINE_WRITER_H_
