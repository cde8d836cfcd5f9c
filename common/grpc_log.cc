#include "common/grpc_log.h"

#include <grpc/support/log.h>

#include <atomic>

#include "common/log.h"

namespace lockstep {
namespace {

std::atomic<bool> log_enabled = true;

void Log(gpr_log_func_args* args) {
  if (!log_enabled) return;
  if (args->severity == GPR_LOG_SEVERITY_ERROR) {
    LOG(WARNING) << "grpc" << Field("message", args->message);
  } else {
    LOG(INFO) << "grpc" << Field("message", args->message);
  }
}

}  // namespace

void InitGrpcLog() { gpr_set_log_function(Log); }

void SetGrpcLogEnabled(bool enabled) { log_enabled = enabled; }

}  // namespace lockstep
