#include "common/host_port.h"

#include <arpa/inet.h>

#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/printable.h"

namespace lockstep {

std::string HostPort::ToString() const {
  const bool brackets = host.find(':') != std::string::npos;
  return brackets ? absl::StrCat("[", host, "]:", port)
                  : absl::StrCat(host, ":", port);
}

absl::StatusOr<HostPort> ParseHostPort(absl::string_view text) {
  const auto error = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected HOST:PORT, such as localhost:7070 or "
                     "[::1]:7070, got ",
                     Quoted(text), ": ", why));
  };
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return error("no port");
  absl::string_view host = text.substr(0, colon);
  const absl::string_view port = text.substr(colon + 1);
  HostPort result;
  if (!absl::SimpleAtoi(port, &result.port) || result.port < 0 ||
      result.port > 65535 || !absl::ascii_isdigit(port[0])) {
    return error("the port must be a number from 0 to 65535");
  }
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) {
    host = host.substr(1, host.size() - 2);
    in6_addr address;
    if (inet_pton(AF_INET6, std::string(host).c_str(), &address) != 1) {
      return error("no IPv6 address in brackets");
    }
  } else {
    if (host.empty()) return error("no host");
    for (const char c : host) {
      if (c == ':') return error("an IPv6 address needs brackets");
      if (!absl::ascii_isalnum(c) && c != '-' && c != '.' && c != '_') {
        return error("the host may hold letters, digits, '-', '.' and '_'");
      }
    }
  }
  result.host = std::string(host);
  return result;
}

bool IsLoopback(const std::string& host) {
  if (absl::EqualsIgnoreCase(host, "localhost")) return true;
  in_addr v4;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) {
    return ntohl(v4.s_addr) >> 24 == 127;
  }
  in6_addr v6;
  if (inet_pton(AF_INET6, host.c_str(), &v6) == 1) {
    return IN6_IS_ADDR_LOOPBACK(&v6);
  }
  return false;
}

}  // namespace lockstep
