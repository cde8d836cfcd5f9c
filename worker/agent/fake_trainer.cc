#include "worker/agent/fake_trainer.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/check.h"
#include "common/log.h"
#include "common/status.h"
#include "worker/link/device_lock.h"
#include "worker/link/trainer_life.h"
#include "worker/link/trainer_link.h"

namespace lockstep {
namespace {

struct Behaviour {
  std::set<std::string> words;
  int64_t steps = 0;

  bool does(const char* word) const { return words.count(word) > 0; }
};

Behaviour ReadBehaviour() {
  Behaviour behaviour;
  const char* text = std::getenv("FAKE_TRAINER");
  for (absl::string_view word :
       absl::StrSplit(text == nullptr ? "" : text, ',')) {
    if (absl::ConsumePrefix(&word, "steps=")) {
      LS_CHECK(absl::SimpleAtoi(word, &behaviour.steps));
    } else {
      behaviour.words.emplace(word);
    }
  }
  return behaviour;
}

class FakeTrainer {
 public:
  FakeTrainer(const TrainerOptions& options, const Behaviour& behaviour)
      : behaviour_(behaviour),
        worker_(options.worker),
        link_fd_(options.link_fd),
        link_(UniqueFd(options.link_fd)) {}

  // Returns when the link has ended.
  absl::Status Run() {
    RETURN_IF_ERROR(link_.SendReady());
    if (behaviour_.does("stop")) raise(SIGSTOP);
    if (behaviour_.does("not_reading")) WaitForEver();
    if (behaviour_.does("garbage")) {
      LS_CHECK(write(link_fd_, "\xFF\xFF\xFF\xFFgarbage", 11) == 11);
    }
    if (behaviour_.does("close_link")) {
      close(link_fd_);
      WaitForEver();
    }
    if (behaviour_.does("spam")) {
      std::thread([] {
        const std::string line(200, '\xFE');
        for (;;) std::fprintf(stderr, "%s\n", line.c_str());
      }).detach();
    }
    for (;;) {
      ASSIGN_OR_RETURN(const CommandBody command, link_.Next());
      RETURN_IF_ERROR(
          std::visit([&](const auto& c) { return Do(c); }, command));
    }
  }

 private:
  [[noreturn]] static void WaitForEver() {
    for (;;) pause();
  }

  absl::Status Do(const Prepare& prepare) {
    if (behaviour_.does("crash")) {
      std::fprintf(stderr, "loading the model\nrow 7\nabout to crash");
      std::fflush(stderr);
      signal(SIGSEGV, SIG_DFL);
      raise(SIGSEGV);
    }
    held_.emplace();
    held_->key = prepare.key;
    held_->rank = prepare.rank;
    return Tell(Phase::kJoined);
  }

  absl::Status Do(const Start& start) {
    RETURN_IF_ERROR(Tell(Phase::kTraining));
    for (int64_t step = start.first_step;
         step < start.first_step + behaviour_.steps; ++step) {
      v1::StepMetrics metrics;
      metrics.set_job(absl::StrCat("jobs/", start.key.job.value));
      metrics.set_generation(start.key.generation);
      metrics.set_step(step);
      metrics.set_rank(held_->rank);
      metrics.set_worker(absl::StrCat("workers/", worker_.value));
      RETURN_IF_ERROR(link_.SendStepReport(metrics));
      held_->committed_step_count = step + 1;
    }
    if (behaviour_.does("exit_after_steps")) _exit(5);
    return behaviour_.steps > 0 ? Tell(Phase::kOutputReady) : absl::OkStatus();
  }

  absl::Status Do(const CommitOutput&) { return Tell(Phase::kFinished); }

  absl::Status Do(const Release&) {
    if (behaviour_.does("ignore_release")) return absl::OkStatus();
    held_.reset();
    return link_.SendHolds(std::nullopt);
  }

  absl::Status Tell(Phase phase) {
    held_->phase = phase;
    return link_.SendHolds(held_);
  }

  const Behaviour behaviour_;
  const WorkerId worker_;
  const int link_fd_;
  TrainerLink link_;
  std::optional<HeldGeneration> held_;
};

}  // namespace

int FakeTrainerMain(const TrainerOptions& options) {
  if (!EndWithAgent(options.agent_process_id).ok()) return 1;
  // A crash that is meant leaves no core file.
  const rlimit no_core{0, 0};
  LS_CHECK(setrlimit(RLIMIT_CORE, &no_core) == 0);
  const Behaviour behaviour = ReadBehaviour();
  if (behaviour.does("exit_at_start")) {
    std::printf("no device\n");
    std::fflush(stdout);
    std::fprintf(stderr, "giving up\n");
    return 3;
  }
  const auto lock = DeviceLock::Acquire(
      options.lock_key, options.lock_timeout, RealClock(),
      [](const std::string& reason) { LOG(INFO) << reason; });
  if (!lock.ok()) {
    LOG(ERROR) << "no device" << Field("reason", lock.status().message());
    return 1;
  }
  if (behaviour.does("child") && fork() == 0) {
    for (;;) pause();
  }
  if (behaviour.does("never_ready")) {
    for (;;) pause();
  }
  FakeTrainer trainer(options, behaviour);
  LOG(INFO) << "fake trainer ends" << Field("reason", trainer.Run().message());
  return 0;
}

}  // namespace lockstep
