// Bytes of a message that are the same whenever the message is.
#ifndef COMMON_SERIALIZE_H_
#define COMMON_SERIALIZE_H_

#include <string>

#include "google/protobuf/message_lite.h"

namespace lockstep {

// Deterministic within one build of the program, which is what fingerprints
// and comparisons of stored bytes need.
std::string SerializeDeterministically(
    const google::protobuf::MessageLite& message);

}  // namespace lockstep

#endif  // COMMON_SERIALIZE_H_
