// The fingerprint of a job's specification.
#ifndef COMMON_SPEC_DIGEST_H_
#define COMMON_SPEC_DIGEST_H_

#include <string>

#include "lockstep/v1/job.pb.h"

namespace lockstep {

// SHA-256 of the deterministic serialization, 64 lower-case hexadecimal digits.
// Equal messages have equal digests; a default written out and one left out are
// different messages.
std::string SpecDigest(const v1::JobSpec& spec);

}  // namespace lockstep

#endif  // COMMON_SPEC_DIGEST_H_
