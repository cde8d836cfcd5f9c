#include "common/bytes_text.h"

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

}  // namespace lockstep
