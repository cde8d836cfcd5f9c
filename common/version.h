// The version of the programs of this tree.
#ifndef COMMON_VERSION_H_
#define COMMON_VERSION_H_

namespace lockstep {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace lockstep

#endif  // COMMON_VERSION_H_
