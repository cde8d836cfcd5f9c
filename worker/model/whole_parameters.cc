#include "worker/model/whole_parameters.h"

#include "common/check.h"
#include "common/status.h"

namespace lockstep {

using kernels::Bfloat16;

absl::StatusOr<std::unique_ptr<WholeParameters>> WholeParameters::Create(
    const Layout& layout, Products products, kernels::Stream& stream) {
  std::unique_ptr<WholeParameters> parameters(
      new WholeParameters(layout, stream));
  if (products == Products::kBfloat16) {
    ASSIGN_OR_RETURN(parameters->rounded_,
                     stream.device().Allocate(layout.element_count *
                                              int64_t{sizeof(Bfloat16)}));
  }
  return parameters;
}

absl::Status WholeParameters::Set(const float* values) {
  LS_CHECK(values != nullptr);
  values_ = values;
  if (rounded_ == nullptr) return absl::OkStatus();
  return kernels::RoundToBfloat16(stream_, values, layout_.element_count, 1,
                                  layout_.element_count,
                                  rounded_->as<Bfloat16>());
}

absl::StatusOr<ParameterSource::Values> WholeParameters::Acquire(int unit) {
  if (values_ == nullptr) {
    return absl::FailedPreconditionError("no parameters are set");
  }
  const int64_t offset = layout_.units[unit].range.offset;
  return Values{.values = values_ + offset,
                .rounded = rounded_ == nullptr
                               ? nullptr
                               : rounded_->as<Bfloat16>() + offset};
}

}  // namespace lockstep
