#include "common/log.h"

#include <unistd.h>

#include <cerrno>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace lockstep {
namespace {

constexpr size_t kFieldBytesMax = 4096;

// In quotes; only what must be is escaped, so that text stays readable.
std::string QuotedField(absl::string_view value) {
  std::string out = "\"";
  for (const char c : value.substr(0, kFieldBytesMax)) {
    if (c == '"' || c == '\\') out.push_back('\\');
    out.push_back(c);  // Control characters: OneLine() sees to them.
  }
  out.push_back('"');
  if (value.size() > kFieldBytesMax) {
    absl::StrAppend(&out, "...(", value.size(), " bytes)");
  }
  return out;
}

// Control characters escaped, all else as it is.
std::string OneLine(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      absl::StrAppend(&out, absl::CEscape(absl::string_view(&c, 1)));
    } else {
      out.push_back(c);
    }
  }
  return out;
}

class StderrSink : public google::LogSink {
 public:
  void send(google::LogSeverity severity, const char*, const char* file,
            int line, const google::LogMessageTime& time, const char* message,
            size_t message_size) override {
    std::string text = FormatLogLine(
        absl::FromTimeT(time.timestamp()) + absl::Microseconds(time.usec()),
        severity, file, line, absl::string_view(message, message_size));
    text.push_back('\n');
    // One write for one line: lines of threads, and of processes that share
    // the file, do not mix.  glog calls this under its own lock.
    size_t done = 0;
    while (done < text.size()) {
      const ssize_t n =
          write(STDERR_FILENO, text.data() + done, text.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return;  // Nobody listens; there is nobody to tell.
      done += static_cast<size_t>(n);
    }
  }
  using google::LogSink::send;
};

}  // namespace

bool IsInfoLine(absl::string_view line) {
  // 2026-01-31T23:59:59.999Z INFO ...
  constexpr absl::string_view kForm = "dddd-dd-ddTdd:dd:dd.dddZ INFO ";
  if (line.size() < kForm.size()) return false;
  for (size_t i = 0; i < kForm.size(); ++i) {
    const bool fits = kForm[i] == 'd' ? line[i] >= '0' && line[i] <= '9'
                                      : line[i] == kForm[i];
    if (!fits) return false;
  }
  return true;
}

std::string FieldText(absl::string_view name, absl::string_view value) {
  bool plain = !value.empty() && value.size() <= kFieldBytesMax;
  for (const char c : value) {
    plain &= c > ' ' && c < 0x7F && c != '"' && c != '=' && c != '\\';
  }
  return absl::StrCat(" ", name, "=",
                      plain ? std::string(value) : OneLine(QuotedField(value)));
}

std::string FormatLogLine(absl::Time time, int severity, const char* file,
                          int line, absl::string_view message) {
  constexpr const char* kNames[] = {"INFO", "WARNING", "ERROR", "FATAL"};
  const bool known = severity >= 0 && severity < 4;
  std::string text = absl::StrCat(
      absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", time, absl::UTCTimeZone()), " ",
      known ? kNames[severity] : "INFO", " ", OneLine(message));
  if (severity == google::GLOG_FATAL) {
    absl::StrAppend(&text, FieldText("at", absl::StrCat(file, ":", line)));
  }
  return text;
}

void InitLog(const char* program) {
  static StderrSink* sink = new StderrSink;
  google::InitGoogleLogging(program);
  google::AddLogSink(sink);
  // Nothing by glog itself: neither its files in /tmp nor its own lines.
  for (int severity = 0; severity < google::NUM_SEVERITIES; ++severity) {
    google::SetLogDestination(severity, "");
  }
  google::SetStderrLogging(google::NUM_SEVERITIES);
}

}  // namespace lockstep
