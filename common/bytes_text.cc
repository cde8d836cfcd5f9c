#include "common/bytes_text.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lockstep {

std::string ThreeDigits(double value) {
  if (value >= 99.95) return absl::StrFormat("%.0f", value);
  if (value >= 9.995) return absl::StrFormat("%.1f", value);
  return absl::StrFormat("%.2f", value);
}

std::string BytesText(int64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  const char* unit = "KMGTPE";
  double value = static_cast<double>(bytes) / 1024;
  while (value >= 1023.5 && unit[1] != '\0') {
    value /= 1024;
    ++unit;
  }
  return absl::StrCat(ThreeDigits(value), " ", std::string(1, *unit), "iB");
}

std::string BytesTextAtLeast(int64_t bytes) {
  if (bytes < 1024) return BytesText(bytes);
  double unit = 1024;
  while (static_cast<double>(bytes) / unit >= 1023.5 && unit < 0x1p60) {
    unit *= 1024;
  }
  // The last of the digits that are shown.
  const double value = static_cast<double>(bytes) / unit;
  const double digit = value >= 99.95 ? 1 : value >= 9.995 ? 0.1 : 0.01;
  return BytesText(std::llround(std::ceil(value / digit) * digit * unit));
}

}  // namespace lockstep
