// AdamW over what a rank owns of the flat space, straight from the exact sums.
#ifndef WORKER_PARALLEL_OPTIMIZER_H_
#define WORKER_PARALLEL_OPTIMIZER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/layout.h"
#include "kernels/device.h"
#include "worker/parallel/gradient_reducer.h"
#include "worker/parallel/reduction_plan.h"

namespace lockstep {

struct OptimizerOptions {
  double beta1 = 0.9;     // 0 <= beta1 < 1.
  double beta2 = 0.95;    // 0 <= beta2 < 1.
  double epsilon = 1e-8;  // Positive.

  // On tensors of two dimensions only; 0 or more.
  double weight_decay = 0.1;

  // The gradient is scaled by min(1, clip_norm / (norm + 1e-6)), norm being
  // that of the whole mean gradient.  0: not at all.
  double clip_norm = 1;
};

// Belongs to the thread that trains.
class Optimizer {
 public:
  // Of what `owned` says; without sharding that is everything.  Moments start
  // at zero.  `stream` must outlive this.
  //
  // Errors:
  //   InvalidArgument: an option is out of range.
  //   ResourceExhausted: not enough device memory.
  static absl::StatusOr<std::unique_ptr<Optimizer>> Create(
      const Layout& layout, const OwnedShards& owned,
      const OptimizerOptions& options, kernels::Stream& stream);

  // One step; `learning_rate` is that of the step's place in the schedule.  A
  // skipped step changes nothing, and does not count in the bias corrections.
  // `after_unit` is called after each unit, in forward order, once its update
  // is enqueued; not in a skipped step.
  //
  // sums:       device memory, the reduced gradient
  // parameters: device memory, read and written
  //
  // Errors: the device's, or what after_unit returns.
  absl::Status Apply(
      const StepResult& result, double learning_rate,
      const StateArray<const int64_t>& sums,
      const StateArray<float>& parameters,
      const std::function<absl::Status(int unit)>& after_unit = [](int) {
        return absl::OkStatus();
      });

  // The state, to save and restore: device memory over the owned space each,
  // and how many updates were applied.
  float* moment1() { return moment1_->as<float>(); }
  float* moment2() { return moment2_->as<float>(); }
  int64_t update_count() const { return update_count_; }
  const std::vector<TensorPiece>& pieces() const { return pieces_; }
  void set_update_count(int64_t count) { update_count_ = count; }

 private:
  Optimizer(const Layout& layout, const OwnedShards& owned,
            const OptimizerOptions& options, kernels::Stream& stream)
      : layout_(layout),
        pieces_(owned.pieces),
        options_(options),
        stream_(stream) {}

  const Layout layout_;
  const std::vector<TensorPiece> pieces_;
  const OptimizerOptions options_;
  kernels::Stream& stream_;
  std::unique_ptr<kernels::Buffer> moment1_;
  std::unique_ptr<kernels::Buffer> moment2_;
  int64_t update_count_ = 0;
};

}  // namespace lockstep

#endif  // WORKER_PARALLEL_OPTIMIZER_H_
