#include "common/unit_calls.h"

namespace lockstep {
namespace {

// Acquires and releases unit `unit`.
void AddUse(int unit, std::vector<UnitCall>& calls) {
  calls.push_back({UnitCall::kAcquire, unit});
  calls.push_back({UnitCall::kRelease, unit});
}

// The head with its weight.
void AddHeadUse(int head, bool tied, std::vector<UnitCall>& calls) {
  calls.push_back({UnitCall::kAcquire, head});
  if (tied) calls.push_back({UnitCall::kAcquire, 0});
  calls.push_back({UnitCall::kRelease, head});
  if (tied) calls.push_back({UnitCall::kRelease, 0});
}

}  // namespace

std::vector<UnitCall> CallsOfMicroBatch(const Layout& layout, bool tied_head) {
  const int head = static_cast<int>(layout.units.size()) - 1;
  std::vector<UnitCall> calls;
  for (int unit = 0; unit <= head; ++unit) AddUse(unit, calls);
  AddHeadUse(head, tied_head, calls);
  calls.push_back({UnitCall::kDone, head});
  for (int unit = head - 1; unit > 0; --unit) {
    AddUse(unit, calls);
    calls.push_back({UnitCall::kDone, unit});
  }
  calls.push_back({UnitCall::kDone, 0});
  return calls;
}

std::vector<UnitCall> CallsOfEvaluation(const Layout& layout, bool tied_head) {
  const int head = static_cast<int>(layout.units.size()) - 1;
  std::vector<UnitCall> calls;
  for (int unit = 0; unit < head; ++unit) AddUse(unit, calls);
  AddHeadUse(head, tied_head, calls);
  return calls;
}

}  // namespace lockstep
