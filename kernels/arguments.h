// Checks of kernel arguments, shared by all kernels.
#ifndef KERNELS_ARGUMENTS_H_
#define KERNELS_ARGUMENTS_H_

#include <cstdint>
#include <initializer_list>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace lockstep::kernels {

struct NamedSize {
  const char* name;
  int64_t value;
};

struct NamedPointer {
  const char* name;
  const void* value;
};

// Errors:
//   InvalidArgument: a size is not 0 to 2^40, or their product is above 2^40.
inline absl::Status CheckSizes(const char* kernel,
                               std::initializer_list<NamedSize> sizes) {
  constexpr int64_t kMax = int64_t{1} << 40;
  int64_t product = 1;
  for (const NamedSize& size : sizes) {
    if (size.value < 0 || size.value > kMax) {
      return absl::InvalidArgumentError(absl::StrCat(
          kernel, ": ", size.name, "=", size.value, ": expected 0 to 2^40"));
    }
    if (__builtin_mul_overflow(product, size.value, &product) ||
        product > kMax) {
      return absl::InvalidArgumentError(
          absl::StrCat(kernel, ": ", size.name, "=", size.value,
                       ": more than 2^40 elements in all"));
    }
  }
  return absl::OkStatus();
}

// Errors:
//   InvalidArgument: a pointer is null.
inline absl::Status CheckPointers(
    const char* kernel, std::initializer_list<NamedPointer> pointers) {
  for (const NamedPointer& pointer : pointers) {
    if (pointer.value == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(kernel, ": ", pointer.name, " is null"));
    }
  }
  return absl::OkStatus();
}

}  // namespace lockstep::kernels

#endif  // KERNELS_ARGUMENTS_H_
