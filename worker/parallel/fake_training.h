// Training without a model, for tests: gradients and losses are a function of
// step, micro-batch, tensor and element, so that any split of micro-batches
// over ranks has the same work to do.
#ifndef WORKER_PARALLEL_FAKE_TRAINING_H_
#define WORKER_PARALLEL_FAKE_TRAINING_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/layout.h"
#include "kernels/device.h"
#include "worker/comm/comm_thread.h"
#include "worker/comm/communicator.h"
#include "worker/comm/test_group.h"
#include "worker/parallel/exact_unit.h"
#include "worker/parallel/gradient_reducer.h"
#include "worker/parallel/optimizer.h"
#include "worker/parallel/parameter_store.h"

namespace lockstep {

// A small tied GPT-2: two contributions to its token embedding, and tensors
// that do not end at multiples of the alignment.
Layout FakeLayout();

// Contribution number `contribution` (0 or 1; 1 only for a tied embedding) of a
// micro-batch to a tensor.  Tensors differ in scale by powers of ten, and each
// step is a little larger than the last.
std::vector<float> FakeGradient(const Layout& layout, int64_t step,
                                int64_t micro_batch, int tensor,
                                int contribution);
LossSum FakeLoss(int64_t step, int64_t micro_batch);

// What parameter i begins with.
float FakeParameter(int64_t i);

struct FakeOptions {
  GroupKind kind = GroupKind::kLoopback;
  // Which micro-batches each rank runs; entry i is rank i's.  Together 0 to
  // M - 1, each once.
  std::vector<std::vector<int64_t>> split = {{0}};
  int64_t bucket_bytes = 1 << 20;
  bool overlap = true;
  int zero_stage = 0;
  int64_t step_count = 5;
  int thread_count = 1;
  OptimizerOptions optimizer;

  int world() const { return static_cast<int>(split.size()); }
  int64_t micro_batch_count() const;
  int64_t round_count() const;
};

// One rank.
class FakeRank {
 public:
  FakeRank(const FakeOptions& options,
           std::unique_ptr<Communicator> communicator);

  // Changes a contribution before it is made, at (step, micro-batch, tensor,
  // contribution).
  using Tamper =
      std::function<void(int64_t, int64_t, int, int, std::vector<float>&)>;
  Tamper tamper;
  std::function<void(int64_t, int64_t, LossSum&)> tamper_loss;

  // Called in a backward after each unit: (micro-batch, unit).
  std::function<void(int64_t, int)> after_unit;

  // BeginStep up to Commit.
  absl::StatusOr<StepResult> RunStep(int64_t step, const Votes& votes = {});

  // The whole step: also the update, and the units' exponents.
  absl::StatusOr<StepResult> Train(int64_t step);

  // Of the last step, over the flat space: from ZeRO stage 1 on zeros where
  // this rank owns nothing.
  std::vector<int64_t> sums();

  // Over the flat space.  At stage 3 every rank must call this.
  std::vector<float> parameters();
  CommThread& comm() { return *comm_; }
  GradientReducer& reducer() { return *reducer_; }
  Optimizer& optimizer() { return *optimizer_; }
  const std::vector<UnitHistory>& units() const { return units_; }
  const Layout& layout() const { return layout_; }

 private:
  absl::Status RunMicroBatch(int64_t step, int64_t micro_batch);
  absl::Status Contribute(int64_t step, int64_t micro_batch, int tensor,
                          int contribution);

  const FakeOptions options_;
  const Layout layout_;
  const ExactScale scale_;
  std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<kernels::Stream> stream_;
  std::unique_ptr<CommThread> comm_;
  std::unique_ptr<GradientReducer> reducer_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<ParameterStore> parameters_;
  std::vector<UnitHistory> units_;
};

// All ranks, each made, used and destroyed in a thread of its own.
void ForEachFakeRank(const FakeOptions& options,
                     const std::function<void(int rank, FakeRank&)>& body);

}  // namespace lockstep

#endif  // WORKER_PARALLEL_FAKE_TRAINING_H_
