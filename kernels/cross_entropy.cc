#include "kernels/cross_entropy.h"

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "kernels/arguments.h"
#include "kernels/cpu/cross_entropy.h"
#include "kernels/cpu/device.h"

namespace lockstep::kernels {
namespace {

absl::Status Check(const char* kernel, const float* logits,
                   const int32_t* targets, int64_t row_count,
                   int64_t vocabulary, const float* losses) {
  RETURN_IF_ERROR(CheckSizes(
      kernel, {{"row_count", row_count}, {"vocabulary", vocabulary}}));
  if (vocabulary == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(kernel, ": vocabulary=0: expected 1 or more"));
  }
  if (row_count == 0) return absl::OkStatus();
  return CheckPointers(
      kernel, {{"logits", logits}, {"targets", targets}, {"losses", losses}});
}

}  // namespace

absl::Status CrossEntropyForward(Stream& stream, const float* logits,
                                 const int32_t* targets, int64_t row_count,
                                 int64_t vocabulary, float* losses) {
  RETURN_IF_ERROR(Check("CrossEntropyForward", logits, targets, row_count,
                        vocabulary, losses));
  switch (stream.backend()) {
    case Backend::kCpu:
      cpu::CrossEntropyForward(cpu::PoolOf(stream), logits, targets, row_count,
                               vocabulary, losses);
      return absl::OkStatus();
  }
  return absl::InternalError("CrossEntropyForward: unknown backend");
}

absl::Status CrossEntropyForwardBackward(Stream& stream, float* logits,
                                         const int32_t* targets,
                                         int64_t row_count, int64_t vocabulary,
                                         float* losses) {
  RETURN_IF_ERROR(Check("CrossEntropyForwardBackward", logits, targets,
                        row_count, vocabulary, losses));
  switch (stream.backend()) {
    case Backend::kCpu:
      cpu::CrossEntropyForwardBackward(cpu::PoolOf(stream), logits, targets,
                                       row_count, vocabulary, losses);
      return absl::OkStatus();
  }
  return absl::InternalError("CrossEntropyForwardBackward: unknown backend");
}

}  // namespace lockstep::kernels
