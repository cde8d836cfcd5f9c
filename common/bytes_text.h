// Amounts as people read them.
#ifndef COMMON_BYTES_TEXT_H_
#define COMMON_BYTES_TEXT_H_

#include <cstdint>
#include <string>

namespace lockstep {

// "1.23", "45.6", "789"; of 0 to below 1,024.
std::string ThreeDigits(double value);

// In powers of 1,024: "512 B", "1.00 KiB", "15.6 GiB".
std::string BytesText(int64_t bytes);

// Likewise, but never less than it is: of what is needed.
std::string BytesTextAtLeast(int64_t bytes);

}  // namespace lockstep

#endif  // COMMON_BYTES_TEXT_H_
