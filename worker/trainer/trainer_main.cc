#include "worker/trainer/trainer_main.h"

#include <sys/random.h>

#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/status.h"
#include "kernels/device.h"
#include "worker/link/device_lock.h"
#include "worker/link/trainer_life.h"
#include "worker/link/trainer_link.h"
#include "worker/trainer/generation.h"

namespace lockstep {
namespace {

// Signs of going on are no more frequent than this.
constexpr absl::Duration kProgressInterval = absl::Seconds(1);

absl::StatusOr<std::string> RandomHex() {
  uint64_t random = 0;
  if (getrandom(&random, sizeof(random), 0) != sizeof(random)) {
    return absl::InternalError("getrandom failed");
  }
  return absl::StrFormat("%016x", random);
}

absl::StatusOr<std::unique_ptr<kernels::Device>> OpenDevice(
    const TrainerOptions& options) {
  if (options.device != "cpu") {
    return absl::UnimplementedError(
        absl::StrCat("device ", options.device, ": this build has only cpu"));
  }
  return kernels::CreateCpuDevice(options.threads, options.memory_bytes);
}

absl::Status Serve(const TrainerOptions& options) {
  RETURN_IF_ERROR(EndWithAgent(options.agent_process_id));
  ASSIGN_OR_RETURN(
      const DeviceLock lock,
      DeviceLock::Acquire(options.lock_key, options.lock_timeout, RealClock(),
                          [](const std::string& reason) {
                            LOG(WARNING) << "waiting for the device"
                                         << Field("reason", reason);
                          }));
  ASSIGN_OR_RETURN(std::unique_ptr<kernels::Device> device,
                   OpenDevice(options));
  TrainerLink link{UniqueFd(options.link_fd)};
  RETURN_IF_ERROR(link.SendReady());

  // A send that fails means that the agent is gone; Next() will say so too.
  std::unique_ptr<Generation> generation;
  while (true) {
    absl::StatusOr<CommandBody> command = link.Next();
    if (absl::IsUnavailable(command.status())) return absl::OkStatus();
    RETURN_IF_ERROR(command.status());
    if (auto* prepare = std::get_if<Prepare>(&*command)) {
      if (generation != nullptr) {
        return absl::InternalError(absl::StrCat(
            "told to prepare generation ", prepare->key.generation, " of jobs/",
            prepare->key.job.value, " while holding another"));
      }
      ASSIGN_OR_RETURN(std::string random, RandomHex());
      generation = std::make_unique<Generation>(
          Generation::Environment{
              .device = device.get(),
              .clock = &RealClock(),
              .worker = options.worker,
              .listen_host = options.listen_host,
              .collectives = options.collectives,
              .connect_timeout = options.connect_timeout,
              .collective_timeout = options.collective_timeout,
              .random = std::move(random),
              .on_held =
                  [&link](const HeldGeneration& held) {
                    link.SendHolds(held).IgnoreError();
                  },
              .on_step =
                  [&link](const v1::StepMetrics& metrics) {
                    link.SendStepReport(metrics).IgnoreError();
                  },
              .on_progress =
                  [&link, last = Instant{-absl::InfiniteDuration()}]() mutable {
                    const Instant now = RealClock().Now();
                    if (now - last < kProgressInterval) return;
                    last = now;
                    link.SendProgress().IgnoreError();
                  },
          },
          std::move(*prepare));
      continue;
    }
    if (generation == nullptr || generation->key() != KeyOf(*command)) continue;
    if (auto* start = std::get_if<Start>(&*command)) {
      generation->OnStart(std::move(*start));
    } else if (std::holds_alternative<CommitOutput>(*command)) {
      generation->OnCommitOutput();
    } else if (const auto* release = std::get_if<Release>(&*command)) {
      LOG(INFO) << "releasing" << Field("job", release->key.job)
                << Field("generation", release->key.generation)
                << Field("reason", release->reason);
      generation.reset();
      RETURN_IF_ERROR(link.SendHolds(std::nullopt));
    }
  }
}

}  // namespace

int TrainerMain(const TrainerOptions& options) {
  const absl::Status status = Serve(options);
  if (status.ok()) return 0;
  LOG(ERROR) << "the trainer ends" << Field("error", status.message());
  return 1;
}

}  // namespace lockstep
