// absl::Status as gRPC carries it, both ways.
#ifndef COMMON_GRPC_STATUS_H_
#define COMMON_GRPC_STATUS_H_

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace lockstep {

// The message travels in a header, percent-encoded, and a peer drops headers
// above 8 KiB, status and all: a longer message is cut, and says so.
grpc::Status ToGrpcStatus(const absl::Status& status);

absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace lockstep

#endif  // COMMON_GRPC_STATUS_H_
