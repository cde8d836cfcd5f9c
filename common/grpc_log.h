// gRPC's own log lines among ours.
#ifndef COMMON_GRPC_LOG_H_
#define COMMON_GRPC_LOG_H_

namespace lockstep {

// Sends what gRPC has to say through common/log.h, its errors as warnings:
// whatever matters comes back as a status, too, and is reported by whoever got
// that.  Once, from main, after InitLog() and before gRPC is used.
void InitGrpcLog();

// Whether it is logged at all; yes at first.  To keep gRPC quiet about an error
// that is reported better elsewhere.
void SetGrpcLogEnabled(bool enabled);

}  // namespace lockstep

#endif  // COMMON_GRPC_LOG_H_
