// Numbers on command lines.
#ifndef COMMON_NUMBER_FLAG_H_
#define COMMON_NUMBER_FLAG_H_

#include <string>

namespace lockstep {

// Why `text` is no number above 0, up to `max`; empty if it is.
std::string PositiveNumberFault(const std::string& text, double max);

}  // namespace lockstep

#endif  // COMMON_NUMBER_FLAG_H_
