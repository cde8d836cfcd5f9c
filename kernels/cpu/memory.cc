#include "kernels/cpu/memory.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace lockstep::kernels::cpu {
namespace {

// The value in bytes of a line such as "MemTotal:       24656244 kB"; 0 if
// there is none.
int64_t MeminfoBytes(absl::string_view meminfo, absl::string_view key) {
  for (absl::string_view line : absl::StrSplit(meminfo, '\n')) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t kilobytes = 0;
    if (words.size() >= 2 && words[0] == key &&
        absl::SimpleAtoi(words[1], &kilobytes)) {
      return kilobytes * 1024;
    }
  }
  return 0;
}

std::string ReadFile(const char* path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

HostMemory ParseHostMemory(absl::string_view meminfo,
                           absl::string_view group_max,
                           absl::string_view group_current) {
  HostMemory memory{.total_bytes = MeminfoBytes(meminfo, "MemTotal:"),
                    .available_bytes = MeminfoBytes(meminfo, "MemAvailable:")};
  int64_t limit = 0;
  if (absl::SimpleAtoi(absl::StripAsciiWhitespace(group_max), &limit)) {
    int64_t used = 0;
    if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(group_current), &used)) {
      used = 0;
    }
    memory.total_bytes = std::min(memory.total_bytes, limit);
    memory.available_bytes =
        std::min(memory.available_bytes, std::max<int64_t>(limit - used, 0));
  }
  return memory;
}

HostMemory ReadHostMemory() {
  return ParseHostMemory(ReadFile("/proc/meminfo"),
                         ReadFile("/sys/fs/cgroup/memory.max"),
                         ReadFile("/sys/fs/cgroup/memory.current"));
}

}  // namespace lockstep::kernels::cpu
