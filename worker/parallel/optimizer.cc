#include "worker/parallel/optimizer.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "kernels/exact_sum.h"

namespace lockstep {
namespace {

absl::Status Check(bool valid, const char* name, double value,
                   const char* expected) {
  if (valid) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": expected ", expected, ", got ", value));
}

// By multiplications in a fixed order: the C library's pow differs in its last
// bit between versions.
double Power(double base, int64_t exponent) {
  double result = 1;
  for (double factor = base; exponent > 0; exponent >>= 1) {
    if (exponent & 1) result *= factor;
    factor *= factor;
  }
  return result;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Optimizer>> Optimizer::Create(
    const Layout& layout, const OwnedShards& owned,
    const OptimizerOptions& options, kernels::Stream& stream) {
  const auto is_beta = [](double b) { return b >= 0 && b < 1; };
  const auto is_finite_from_0 = [](double x) {
    return x >= 0 && std::isfinite(x);
  };
  RETURN_IF_ERROR(
      Check(is_beta(options.beta1), "beta1", options.beta1, "0 to below 1"));
  RETURN_IF_ERROR(
      Check(is_beta(options.beta2), "beta2", options.beta2, "0 to below 1"));
  RETURN_IF_ERROR(Check(options.epsilon > 0 && std::isfinite(options.epsilon),
                        "epsilon", options.epsilon, "above 0"));
  RETURN_IF_ERROR(Check(is_finite_from_0(options.weight_decay), "weight_decay",
                        options.weight_decay, "0 or more"));
  RETURN_IF_ERROR(Check(is_finite_from_0(options.clip_norm), "clip_norm",
                        options.clip_norm, "0 (off) or more"));
  std::unique_ptr<Optimizer> optimizer(
      new Optimizer(layout, owned, options, stream));
  const int64_t bytes = owned.element_count * int64_t{sizeof(float)};
  ASSIGN_OR_RETURN(optimizer->moment1_, stream.device().Allocate(bytes));
  ASSIGN_OR_RETURN(optimizer->moment2_, stream.device().Allocate(bytes));
  return optimizer;
}

absl::Status Optimizer::Apply(
    const StepResult& result, double learning_rate,
    const StateArray<const int64_t>& sums, const StateArray<float>& parameters,
    const std::function<absl::Status(int unit)>& after_unit) {
  if (result.skipped()) return absl::OkStatus();
  ++update_count_;
  kernels::AdamWOptions step;
  step.token_count = result.loss.token_count;
  step.clip_scale =
      options_.clip_norm > 0
          ? std::min(1.0, options_.clip_norm / (result.gradient_norm + 1e-6))
          : 1.0;
  step.learning_rate = learning_rate;
  step.beta1 = options_.beta1;
  step.beta2 = options_.beta2;
  step.epsilon = options_.epsilon;
  step.bias_correction1 = 1 - Power(options_.beta1, update_count_);
  step.bias_correction2 = 1 - Power(options_.beta2, update_count_);
  size_t i = 0;
  for (int unit = 0; unit < static_cast<int>(layout_.units.size()); ++unit) {
    for (; i < pieces_.size(); ++i) {
      const TensorPiece& piece = pieces_[i];
      const Tensor& tensor = layout_.tensors[piece.tensor];
      if (tensor.unit != unit) break;
      step.exponent = result.tensors[piece.tensor].exponent;
      step.weight_decay = tensor.decays() ? options_.weight_decay : 0;
      RETURN_IF_ERROR(kernels::AdamWExact(
          stream_, parameters.At(piece), moment1() + piece.owned_offset,
          moment2() + piece.owned_offset, sums.At(piece),
          piece.range.element_count, step));
    }
    RETURN_IF_ERROR(after_unit(unit));
  }
  return absl::OkStatus();
}

}  // namespace lockstep
