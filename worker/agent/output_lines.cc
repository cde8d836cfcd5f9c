#include "worker/agent/output_lines.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/log.h"

namespace lockstep {

std::vector<std::string> OutputLines::Append(absl::string_view bytes) {
  std::vector<std::string> lines;
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    const bool complete = end != absl::string_view::npos;
    absl::string_view part = bytes.substr(0, end);
    const size_t room = kLineBytesMax - partial_.size();
    if (part.size() > room) {
      partial_.append(part.data(), room);
      bytes.remove_prefix(room);
    } else {
      partial_.append(part.data(), part.size());
      bytes.remove_prefix(part.size() + (complete ? 1 : 0));
      if (!complete) break;
    }
    lines.push_back(std::exchange(partial_, {}));
    Remember(lines.back());
  }
  return lines;
}

std::vector<std::string> OutputLines::Finish() {
  if (partial_.empty()) return {};
  Remember(partial_);
  return {std::exchange(partial_, {})};
}

void OutputLines::Remember(const std::string& line) {
  absl::string_view text = absl::StripSuffix(line, "\r");
  if (text.empty() || IsInfoLine(text)) return;
  last_.push_back(
      text.size() <= kLastLineBytesMax
          ? std::string(text)
          : absl::StrCat(text.substr(0, kLastLineBytesMax - 3), "..."));
  last_bytes_ += last_.back().size();
  while (last_.size() > kLastCountMax || last_bytes_ > kLastBytesMax) {
    last_bytes_ -= last_.front().size();
    last_.pop_front();
  }
}

std::string OutputLines::Last() const { return absl::StrJoin(last_, " | "); }

}  // namespace lockstep
