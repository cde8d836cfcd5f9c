// In which order a decoder needs units, and is done with them: that of its
// calls of a ParameterSource and a GradientSink.
#ifndef COMMON_UNIT_CALLS_H_
#define COMMON_UNIT_CALLS_H_

#include <vector>

#include "common/layout.h"

namespace lockstep {

struct UnitCall {
  enum Kind { kAcquire, kRelease, kDone };
  Kind kind;
  int unit;  // Index into Layout::units.
  friend bool operator==(const UnitCall&, const UnitCall&) = default;
};

// Of Forward and then Backward.
std::vector<UnitCall> CallsOfMicroBatch(const Layout& layout, bool tied_head);

// Of Evaluate or Logits.
std::vector<UnitCall> CallsOfEvaluation(const Layout& layout, bool tied_head);

}  // namespace lockstep

#endif  // COMMON_UNIT_CALLS_H_
