#include "kernels/embedding.h"

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "kernels/arguments.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/embedding.h"

namespace lockstep::kernels {

absl::Status EmbeddingForward(Stream& stream, const int32_t* tokens,
                              const float* token_table,
                              const float* position_table, int64_t row_count,
                              int64_t sequence_length, int64_t width,
                              float* out) {
  constexpr const char* kName = "EmbeddingForward";
  RETURN_IF_ERROR(CheckSizes(kName, {{"row_count", row_count},
                                     {"sequence_length", sequence_length},
                                     {"width", width}}));
  if (row_count * sequence_length * width == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckPointers(
      kName, {{"tokens", tokens}, {"token_table", token_table}, {"out", out}}));
  switch (stream.backend()) {
    case Backend::kCpu:
      cpu::EmbeddingForward(cpu::PoolOf(stream), tokens, token_table,
                            position_table, row_count, sequence_length, width,
                            out);
      return absl::OkStatus();
  }
  return absl::InternalError("EmbeddingForward: unknown backend");
}

absl::Status TokenEmbeddingBackward(Stream& stream, const int32_t* tokens,
                                    const float* gradient, int64_t token_count,
                                    int64_t vocabulary, int64_t width,
                                    float* table_gradient) {
  constexpr const char* kName = "TokenEmbeddingBackward";
  RETURN_IF_ERROR(
      CheckSizes(kName, {{"token_count", token_count}, {"width", width}}));
  RETURN_IF_ERROR(
      CheckSizes(kName, {{"vocabulary", vocabulary}, {"width", width}}));
  if (vocabulary * width == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckPointers(kName, {{"table_gradient", table_gradient}}));
  if (token_count > 0) {
    RETURN_IF_ERROR(
        CheckPointers(kName, {{"tokens", tokens}, {"gradient", gradient}}));
  }
  switch (stream.backend()) {
    case Backend::kCpu:
      RETURN_IF_ERROR(stream.Zero(
          table_gradient,
          vocabulary * width * static_cast<int64_t>(sizeof(float))));
      cpu::AddTokenRows(cpu::PoolOf(stream), tokens, gradient, token_count,
                        width, table_gradient);
      return absl::OkStatus();
  }
  return absl::InternalError("TokenEmbeddingBackward: unknown backend");
}

absl::Status PositionEmbeddingBackward(Stream& stream, const float* gradient,
                                       int64_t row_count,
                                       int64_t sequence_length,
                                       int64_t position_max, int64_t width,
                                       float* table_gradient) {
  constexpr const char* kName = "PositionEmbeddingBackward";
  RETURN_IF_ERROR(CheckSizes(kName, {{"row_count", row_count},
                                     {"sequence_length", sequence_length},
                                     {"width", width}}));
  RETURN_IF_ERROR(
      CheckSizes(kName, {{"position_max", position_max}, {"width", width}}));
  if (position_max < sequence_length) {
    return absl::InvalidArgumentError(absl::StrCat(
        kName, ": position_max=", position_max,
        ": expected sequence_length=", sequence_length, " or more"));
  }
  if (position_max * width == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckPointers(kName, {{"table_gradient", table_gradient}}));
  if (row_count * sequence_length > 0) {
    RETURN_IF_ERROR(CheckPointers(kName, {{"gradient", gradient}}));
  }
  switch (stream.backend()) {
    case Backend::kCpu:
      cpu::PositionEmbeddingBackward(cpu::PoolOf(stream), gradient, row_count,
                                     sequence_length, position_max, width,
                                     table_gradient);
      return absl::OkStatus();
  }
  return absl::InternalError("PositionEmbeddingBackward: unknown backend");
}

}  // namespace lockstep::kernels
