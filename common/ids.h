// Identities, each of its own type, so that none is taken for another.
#ifndef COMMON_IDS_H_
#define COMMON_IDS_H_

#include <compare>
#include <cstdint>
#include <ostream>
#include <string>

#include "absl/strings/string_view.h"

namespace lockstep {

// A name that compares only with its own kind.
template <typename Tag>
struct Name {
  std::string value;
  friend auto operator<=>(const Name&, const Name&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Name& name) {
    return out << name.value;
  }
};

// A number that compares only with its own kind.
template <typename Tag>
struct Number {
  int64_t value = 0;
  friend auto operator<=>(const Number&, const Number&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Number& number) {
    return out << number.value;
  }
};

using JobId = Name<struct JobTag>;        // The {job} of `jobs/{job}`.
using WorkerId = Name<struct WorkerTag>;  // The {worker} of `workers/{worker}`.

// Which start of a worker daemon speaks.  Larger in each start.
using WorkerIncarnation = Number<struct WorkerIncarnationTag>;

// Which start of the coordinator speaks.  Larger in each start; durable.
using CoordinatorIncarnation = Number<struct CoordinatorIncarnationTag>;

// One stream between a worker and this start of the coordinator.  Never used
// again; 0 means none.
using SessionId = Number<struct SessionTag>;

// One fixed membership of a job.
struct GenerationKey {
  JobId job;
  int64_t generation = 0;  // From 1; never reused, never going back.
  friend auto operator<=>(const GenerationKey&, const GenerationKey&) = default;
  friend std::ostream& operator<<(std::ostream& out, const GenerationKey& key) {
    return out << key.job << "/" << key.generation;
  }
};

// Whether `text` can be the {job} or {worker} of a resource name: 1 to 63
// letters a to z, digits, hyphens and dots, beginning with a letter or digit.
inline bool IsResourceId(absl::string_view text) {
  if (text.empty() || text.size() > 63) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool plain = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    if (!plain && (i == 0 || (c != '-' && c != '.'))) return false;
  }
  return true;
}

}  // namespace lockstep

#endif  // COMMON_IDS_H_
