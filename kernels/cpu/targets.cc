#include "kernels/cpu/targets.h"

#include <atomic>

#include "common/check.h"
#include "hwy/highway.h"

namespace lockstep::kernels::cpu {
namespace {

std::atomic<Target> running{Target::kNone};

}  // namespace

Target BestTarget() {
  static const Target best = [] {
    const auto targets = hwy::SupportedTargets();
    if (targets & HWY_AVX3) return Target::kAvx512;
    if (targets & HWY_AVX2) return Target::kAvx2;
    return Target::kNone;
  }();
  return best;
}

Target RunningTarget() {
  const Target target = running.load(std::memory_order_relaxed);
  return target == Target::kNone ? BestTarget() : target;
}

void SetRunningTargetForTest(Target target) {
  LS_CHECK(target <= BestTarget());
  running.store(target);
}

}  // namespace lockstep::kernels::cpu
