// The parameters of one rank, at every ZeRO stage.
//
//   0     all, updated by every rank alike
//   1, 2  all; each rank updates its shards, which then go to the others: a
//         unit's as soon as it is updated, while the rest is, and while the
//         next forward runs
//   3     its shards; a unit is gathered into one of a few slots before it is
//         needed, while those before it are used, and its slot is free again
//         afterwards (SlotOfUnit).  A unit that is still there is not gathered
//         again.
//
// At stage 3 every rank makes the same passes, and a pass asks for the same
// units in the same order on every rank, also on one that has nothing to
// compute in it (TakePart): so gathers have one order, with what the
// GradientReducer does between them.
#ifndef WORKER_PARALLEL_PARAMETER_STORE_H_
#define WORKER_PARALLEL_PARAMETER_STORE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/layout.h"
#include "common/unit_calls.h"
#include "kernels/device.h"
#include "worker/comm/comm_thread.h"
#include "worker/model/decoder.h"
#include "worker/parallel/reduction_plan.h"

namespace lockstep {

// What units are needed for.
enum class Pass {
  kMicroBatch,  // CallsOfMicroBatch.
  kEvaluation,  // CallsOfEvaluation.
  kWeights,     // Each once, in forward order.
};

// Belongs to the thread that trains.
class ParameterStore final : public ParameterSource {
 public:
  struct Options {
    int zero_stage = 0;
    int rank = 0;
    int world = 1;
    int64_t bucket_bytes = 25 << 20;  // As ReducerOptions.
    bool tied_head = false;
    Products products = Products::kFloat32;
  };

  // All memory is allocated here.  `stream` and `clock` must outlive this.
  //
  // Errors:
  //   ResourceExhausted: not enough memory.
  static absl::StatusOr<std::unique_ptr<ParameterStore>> Create(
      const Layout& layout, const Options& options, kernels::Stream& stream,
      Clock& clock);

  // Waits for what is under way; abort the communicator first if it may not
  // end.
  ~ParameterStore() override;

  // Takes the parameters from `read`, which is called for each unit in forward
  // order and writes all of it, padding too: values is (unit.element_count)
  // host memory.  No other rank is needed.
  //
  // Errors: those of `read`; not enough memory.
  absl::Status Load(
      const std::function<absl::Status(int unit, float* values)>& read);

  // Before anything that follows.  `comm` must outlive this.
  void Join(CommThread& comm) { comm_ = &comm; }

  // Before the units of a pass are acquired, and after all of the pass before
  // were released.
  absl::Status BeginPass(Pass pass);

  // Makes the calls of a pass that this rank has no work in; `sink` hears of
  // units that are done.
  absl::Status TakePart(Pass pass, GradientSink& sink);

  // Errors: the communicator's; Internal: not the order of the pass.
  absl::StatusOr<Values> Acquire(int unit) override;
  absl::Status Release(int unit) override;

  // What the optimizer updates: at stage 0 everything, else where this rank
  // owns.  Not during a pass.
  StateArray<float> values();

  // After the update of a unit is enqueued; in forward order.
  absl::Status UnitUpdated(int unit);

  // How long Acquire has waited for the wire, in all.
  absl::Duration waited() const { return waited_; }

  // What gathers have handed to other ranks.  Thread-safe.
  int64_t sent_bytes() const { return sent_bytes_; }

 private:
  static constexpr int kPassCount = 3;

  struct Slot {
    std::unique_ptr<kernels::Buffer> values;
    std::unique_ptr<kernels::Buffer> rounded;  // Null without rounding.
    std::unique_ptr<kernels::Event> released;
    int unit = -1;       // That is in it, or on its way.
    int use_count = 0;   // Of the pass, provided for and not released.
    int64_t gather = 0;  // The number of its task.
    bool is_rounded = false;
  };

  ParameterStore(const Layout& layout, const Options& options,
                 kernels::Stream& stream, Clock& clock);
  absl::Status Allocate();
  bool rounds() const { return options_.products == Products::kBfloat16; }

  // Posts the gathers for the uses that come next, as far as slots are free.
  void GatherAhead();

  // Posts that of a unit into `to`, (unit.element_count), once `ready`; then
  // this rank's shards are in place, or, at stage 3, are copied there.
  int64_t PostGather(int unit, float* to, kernels::Event& ready);
  absl::Status WaitFor(int64_t task);
  absl::Status Round(int unit, const float* from, kernels::Bfloat16* to);

  const Layout layout_;
  const Options options_;
  kernels::Stream& stream_;
  Clock& clock_;
  const ReductionPlan plan_;
  const OwnedShards owned_;
  const std::array<std::vector<int>, kPassCount> uses_;  // Units to acquire.
  CommThread* comm_ = nullptr;

  // Up to stage 2 the flat space, at stage 3 what is owned.
  std::unique_ptr<kernels::Buffer> values_;

  // Up to stage 2.
  std::unique_ptr<kernels::Buffer> rounded_;  // Null without rounding.
  std::vector<std::unique_ptr<kernels::Event>> updated_;  // Of each unit.
  std::vector<int64_t> gathers_;  // The number of the last task of each.
  std::vector<bool> is_rounded_;

  // At stage 3.
  std::array<Slot, kUnitSlotCount> slots_;
  const std::vector<int>* pass_ = nullptr;
  size_t next_use_ = 0;
  size_t next_gather_ = 0;  // The first use that is not provided for.

  absl::Duration waited_;
  std::atomic<int64_t> sent_bytes_ = 0;
};

}  // namespace lockstep

#endif  // WORKER_PARALLEL_PARAMETER_STORE_H_
