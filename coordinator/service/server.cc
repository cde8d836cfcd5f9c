#include "coordinator/service/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/listen_address.h"
#include "common/status.h"
#include "coordinator/service/job_service.h"
#include "coordinator/service/monitor_service.h"
#include "coordinator/service/work_queue.h"
#include "coordinator/service/worker_service.h"

namespace lockstep {
namespace {

// A job may name 10,000 files; an assignment, some thousand ranks.
constexpr int kMessageBytesMax = 32 << 20;

constexpr int kReadsMax = 256;

// Calls that outlast this are cut off when the server stops.
constexpr std::chrono::milliseconds kStopGrace(500);

class GrpcServer final : public Server {
 public:
  GrpcServer(Shell& shell, Store& store, Clock& clock)
      : shell_(shell),
        readers_("ls-reader", kReadsMax),
        jobs_(shell),
        monitor_(shell.board(), store, readers_),
        workers_(shell, clock) {}

  ~GrpcServer() override { Stop(); }

  absl::Status Listen(const ServerOptions& options) {
    RETURN_IF_ERROR(RequireLoopbackUnless(options.insecure, options.listen));
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    builder.AddListeningPort(options.listen.ToString(),
                             grpc::InsecureServerCredentials(), &port_);
    // Exclusively: else a second server would take half of the connections.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.SetMaxReceiveMessageSize(kMessageBytesMax);
    const int keepalive_ms = static_cast<int>(std::clamp<int64_t>(
        absl::ToInt64Milliseconds(options.keepalive), 100, 60'000));
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, keepalive_ms);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, keepalive_ms);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    // Clients may ping as they like.
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
    builder.RegisterService(&jobs_);
    builder.RegisterService(&monitor_);
    builder.RegisterService(&workers_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port_ == 0) {
      server_.reset();
      RETURN_IF_ERROR(ProbeListenAddress(options.listen));
      return absl::UnavailableError(
          absl::StrCat(options.listen.ToString(),
                       ": cannot listen: it was taken, and is free again; try "
                       "again"));
    }
    for (const char* name : {v1::JobService::service_full_name(),
                             v1::MonitorService::service_full_name(),
                             v1::WorkerService::service_full_name()}) {
      server_->GetHealthCheckService()->SetServingStatus(name, true);
    }
    return absl::OkStatus();
  }

  int port() const override { return port_; }

  void Stop() override {
    if (server_ == nullptr) return;
    // All names, the empty one too.
    server_->GetHealthCheckService()->SetServingStatus(false);
    shell_.Stop();
    server_->Shutdown(std::chrono::system_clock::now() + kStopGrace);
    server_->Wait();
    server_.reset();
  }

 private:
  Shell& shell_;
  WorkQueue readers_;
  JobService jobs_;
  MonitorService monitor_;
  WorkerService workers_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(
    const ServerOptions& options, Shell& shell, Store& store, Clock& clock) {
  auto server = std::make_unique<GrpcServer>(shell, store, clock);
  const absl::Status status = server->Listen(options);
  if (!status.ok()) return status;
  return server;
}

}  // namespace lockstep
