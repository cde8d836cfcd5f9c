#include "worker/comm/host_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lockstep {
namespace {

bool IsNumeric(const std::string& host) {
  in6_addr address;
  return inet_pton(AF_INET, host.c_str(), &address) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

std::string ToText(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr,
              text, sizeof(text));
  } else if (address->sa_family == AF_INET6) {
    const in6_addr& v6 =
        reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    if (IN6_IS_ADDR_LINKLOCAL(&v6)) return "";
    inet_ntop(AF_INET6, &v6, text, sizeof(text));
  }
  return text;
}

}  // namespace

absl::StatusOr<std::string> NumericHostAddress(const std::string& host) {
  if (IsNumeric(host)) return host;

  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) {
    return absl::InternalError(
        absl::StrCat("getifaddrs: ", std::strerror(errno)));
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(first,
                                                               &freeifaddrs);
  std::set<std::string> names;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* i = first; i != nullptr; i = i->ifa_next) {
      if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != family) continue;
      names.insert(i->ifa_name);
      if (host != i->ifa_name) continue;
      if (std::string text = ToText(i->ifa_addr); !text.empty()) return text;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "host=\"", host,
      "\": expected a numeric address (names are not looked up) or one of the "
      "interfaces ",
      absl::StrJoin(names, ", ")));
}

std::optional<double> LinkBytesPerSecond(const std::string& host) {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return std::nullopt;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(first,
                                                               &freeifaddrs);
  for (const ifaddrs* i = first; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr) continue;
    if (host != i->ifa_name && host != ToText(i->ifa_addr)) continue;
    // In 10^6 bits a second; unreadable or -1 where it means nothing.
    std::ifstream file(absl::StrCat("/sys/class/net/", i->ifa_name, "/speed"));
    double speed = 0;
    if (file >> speed && speed > 0) return speed * 1e6 / 8;
    return std::nullopt;
  }
  return std::nullopt;
}

absl::Status CheckListenable(const std::string& address) {
  sockaddr_storage at = {};
  socklen_t size;
  if (auto* v4 = reinterpret_cast<sockaddr_in*>(&at);
      inet_pton(AF_INET, address.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    size = sizeof(sockaddr_in);
  } else {
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&at);
    if (inet_pton(AF_INET6, address.c_str(), &v6->sin6_addr) != 1) {
      return absl::InternalError(
          absl::StrCat("not a numeric address: ", address));
    }
    v6->sin6_family = AF_INET6;
    size = sizeof(sockaddr_in6);
  }
  const int fd = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool ok =
      fd >= 0 && bind(fd, reinterpret_cast<const sockaddr*>(&at), size) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  if (ok) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("cannot listen on ", address, ": ", std::strerror(error)));
}

}  // namespace lockstep
