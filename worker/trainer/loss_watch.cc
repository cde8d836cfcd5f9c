#include "worker/trainer/loss_watch.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace lockstep {
namespace {

// Of two in the middle the upper one.
double Median(std::vector<double> values) {
  const auto middle = values.begin() + values.size() / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

bool LossWatch::IsSpike(double loss) {
  if (!std::isfinite(loss)) return false;
  bool is_spike = false;
  if (losses_.size() >= kCountMin) {
    const double median = Median({losses_.begin(), losses_.end()});
    std::vector<double> distances;
    for (const double l : losses_) distances.push_back(std::abs(l - median));
    const double usual = 1.4826 * Median(std::move(distances));
    is_spike = loss - median > std::max(kDeviations * usual, kShare * median);
  }
  losses_.push_back(loss);
  if (losses_.size() > kWindow) losses_.pop_front();
  return is_spike;
}

}  // namespace lockstep
