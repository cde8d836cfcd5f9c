// What a process prints, cut into lines; the last ones are remembered.
#ifndef WORKER_AGENT_OUTPUT_LINES_H_
#define WORKER_AGENT_OUTPUT_LINES_H_

#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace lockstep {

// Not thread-safe.
class OutputLines {
 public:
  // A longer line is cut into several.
  static constexpr size_t kLineBytesMax = 8192;
  // How much is remembered: lines, bytes of one, bytes of all.
  static constexpr size_t kLastCountMax = 20;
  static constexpr size_t kLastLineBytesMax = 500;
  static constexpr size_t kLastBytesMax = 4000;

  // Takes what was printed, in pieces of any size, and returns the lines that
  // are complete with it, without their ends.
  std::vector<std::string> Append(absl::string_view bytes);

  // The process prints no more: what it left without an end of line, if any.
  std::vector<std::string> Finish();

  // The last lines, oldest first, separated by " | "; empty ones, and what our
  // own log says in passing, left out.
  std::string Last() const;

 private:
  void Remember(const std::string& line);

  std::string partial_;
  std::deque<std::string> last_;
  size_t last_bytes_ = 0;
};

}  // namespace lockstep

#endif  // WORKER_AGENT_OUTPUT_LINES_H_
