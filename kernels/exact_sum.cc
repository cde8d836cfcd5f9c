#include "kernels/exact_sum.h"

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "kernels/arguments.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/exact_sum.h"

namespace lockstep::kernels {
namespace {

constexpr int kExponentMax = 1000;

absl::Status CheckExponent(const char* kernel, int exponent) {
  if (exponent < -kExponentMax || exponent > kExponentMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        kernel, ": exponent=", exponent, ": expected -1000 to 1000"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status AccumulateExact(Stream& stream, const float* gradient,
                             int64_t* sum, int64_t n, int exponent,
                             int64_t limit, int32_t* overflow) {
  constexpr const char* kName = "AccumulateExact";
  RETURN_IF_ERROR(CheckSizes(kName, {{"n", n}}));
  RETURN_IF_ERROR(CheckExponent(kName, exponent));
  if (limit < 1 || limit > int64_t{1} << 62) {
    return absl::InvalidArgumentError(
        absl::StrCat(kName, ": limit=", limit, ": expected 1 to 2^62"));
  }
  if (n == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckPointers(
      kName, {{"gradient", gradient}, {"sum", sum}, {"overflow", overflow}}));
  switch (stream.backend()) {
    case Backend::kCpu:
      cpu::AccumulateExact(cpu::PoolOf(stream), gradient, sum, n, exponent,
                           limit, overflow);
      return absl::OkStatus();
  }
  return absl::InternalError("AccumulateExact: unknown backend");
}

absl::Status MaxExact(Stream& stream, const int64_t* sum, int64_t n,
                      int64_t* max) {
  RETURN_IF_ERROR(CheckSizes("MaxExact", {{"n", n}}));
  if (n == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckPointers("MaxExact", {{"sum", sum}, {"max", max}}));
  switch (stream.backend()) {
    case Backend::kCpu:
      cpu::MaxExact(cpu::PoolOf(stream), sum, n, max);
      return absl::OkStatus();
  }
  return absl::InternalError("MaxExact: unknown backend");
}

absl::Status AddSquaresExact(Stream& stream, const int64_t* sum, int64_t n,
                             int64_t* limbs) {
  RETURN_IF_ERROR(CheckSizes("AddSquaresExact", {{"n", n}}));
  if (n == 0) return absl::OkStatus();
  RETURN_IF_ERROR(
      CheckPointers("AddSquaresExact", {{"sum", sum}, {"limbs", limbs}}));
  switch (stream.backend()) {
    case Backend::kCpu:
      cpu::AddSquaresExact(cpu::PoolOf(stream), sum, n, limbs);
      return absl::OkStatus();
  }
  return absl::InternalError("AddSquaresExact: unknown backend");
}

absl::Status AdamWExact(Stream& stream, float* parameter, float* moment1,
                        float* moment2, const int64_t* sum, int64_t n,
                        const AdamWOptions& options) {
  constexpr const char* kName = "AdamWExact";
  RETURN_IF_ERROR(CheckSizes(kName, {{"n", n}}));
  RETURN_IF_ERROR(CheckExponent(kName, options.exponent));
  if (options.token_count < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        kName, ": token_count=", options.token_count, ": expected 1 or more"));
  }
  if (n == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckPointers(kName, {{"parameter", parameter},
                                        {"moment1", moment1},
                                        {"moment2", moment2},
                                        {"sum", sum}}));
  switch (stream.backend()) {
    case Backend::kCpu:
      cpu::AdamWExact(cpu::PoolOf(stream), parameter, moment1, moment2, sum, n,
                      options);
      return absl::OkStatus();
  }
  return absl::InternalError("AdamWExact: unknown backend");
}

}  // namespace lockstep::kernels
