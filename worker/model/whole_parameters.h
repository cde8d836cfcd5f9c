// Parameters that are all there, always.
#ifndef WORKER_MODEL_WHOLE_PARAMETERS_H_
#define WORKER_MODEL_WHOLE_PARAMETERS_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/layout.h"
#include "kernels/bfloat16.h"
#include "kernels/device.h"
#include "worker/model/decoder.h"

namespace lockstep {

class WholeParameters final : public ParameterSource {
 public:
  // With bfloat16 `products`, memory for rounded ones is taken here.  `stream`
  // must outlive this.
  //
  // Errors:
  //   ResourceExhausted: not enough memory.
  static absl::StatusOr<std::unique_ptr<WholeParameters>> Create(
      const Layout& layout, Products products, kernels::Stream& stream);

  // values: (layout.element_count) device memory, which must stay.  Before they
  // are used, and whenever they have changed.
  absl::Status Set(const float* values);

  // Errors: FailedPrecondition: nothing is set.
  absl::StatusOr<Values> Acquire(int unit) override;
  absl::Status Release(int) override { return absl::OkStatus(); }

 private:
  WholeParameters(const Layout& layout, kernels::Stream& stream)
      : layout_(layout), stream_(stream) {}

  const Layout layout_;
  kernels::Stream& stream_;
  const float* values_ = nullptr;
  std::unique_ptr<kernels::Buffer> rounded_;  // Null without rounding.
};

}  // namespace lockstep

#endif  // WORKER_MODEL_WHOLE_PARAMETERS_H_
