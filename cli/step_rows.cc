#include "cli/step_rows.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "cli/numbers.h"
#include "cli/text.h"
#include "common/printable.h"

namespace lockstep::cli {
namespace {

std::string Milliseconds(const google::protobuf::Duration& duration) {
  return absl::StrFormat("%.1f", ToMilliseconds(duration));
}

// In quotes where it must be (RFC 4180).
std::string CsvText(const std::string& text) {
  if (text.find_first_of("\",\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

struct CsvColumn {
  const char* title;
  std::string (*value)(const v1::StepMetrics& row);
};

using Row = v1::StepMetrics;

template <auto Getter>
std::string Ms(const Row& row) {
  return DoubleText(ToMilliseconds((row.*Getter)()));
}
template <auto Getter>
std::string Number(const Row& row) {
  return absl::StrCat((row.*Getter)());
}
template <auto Getter>
std::string Real(const Row& row) {
  return DoubleText((row.*Getter)());
}
template <auto Getter>
std::string Text(const Row& row) {
  return CsvText((row.*Getter)());
}

std::string EndTime(const Row& row) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E*SZ",
                          absl::FromUnixSeconds(row.end_time().seconds()) +
                              absl::Nanoseconds(row.end_time().nanos()),
                          absl::UTCTimeZone());
}
std::string HeldOutLoss(const Row& row) {
  return row.has_held_out_loss() ? DoubleText(row.held_out_loss()) : "";
}
std::string EvaluationMs(const Row& row) {
  return row.has_evaluation() ? Ms<&Row::evaluation>(row) : "";
}
std::string HeldOutTokens(const Row& row) {
  return row.has_held_out_loss() ? absl::StrCat(row.held_out_token_count())
                                 : "";
}

constexpr CsvColumn kCsvColumns[] = {
    {"job", Text<&Row::job>},
    {"step", Number<&Row::step>},
    {"rank", Number<&Row::rank>},
    {"worker", Text<&Row::worker>},
    {"generation", Number<&Row::generation>},
    {"end_time", EndTime},
    {"loss_nats", Real<&Row::loss>},
    {"gradient_norm", Real<&Row::gradient_norm>},
    {"learning_rate", Real<&Row::learning_rate>},
    {"token_count", Number<&Row::token_count>},
    {"micro_batch_count", Number<&Row::micro_batch_count>},
    {"step_ms", Ms<&Row::step_duration>},
    {"data_wait_ms", Ms<&Row::data_wait>},
    {"forward_ms", Ms<&Row::forward>},
    {"backward_ms", Ms<&Row::backward>},
    {"exposed_communication_ms", Ms<&Row::exposed_communication>},
    {"update_ms", Ms<&Row::update>},
    {"communication_ms", Ms<&Row::communication>},
    {"sent_bytes", Number<&Row::sent_bytes>},
    {"held_out_loss_nats", HeldOutLoss},
    {"evaluation_ms", EvaluationMs},
    {"held_out_token_count", HeldOutTokens},
    {"skipped", Number<&Row::skipped>},
    {"bucket_count", Number<&Row::bucket_count>},
    {"overlapped_bucket_count", Number<&Row::overlapped_bucket_count>},
    {"skip_reason", Text<&Row::skip_reason>},
    {"wide_bucket_count", Number<&Row::wide_bucket_count>},
    {"device_memory_bytes", Number<&Row::device_memory_bytes>},
    {"peak_resident_bytes", Number<&Row::peak_resident_bytes>},
    {"loss_spike", Number<&Row::loss_spike>},
    {"checkpoint_step_count", Number<&Row::checkpoint_step_count>},
    {"checkpoint_failure", Text<&Row::checkpoint_failure>},
    {"checkpoint_stall_ms", Ms<&Row::checkpoint_stall>},
};

}  // namespace

std::vector<Column> StepColumns() {
  return {
      {.title = "STEP", .right = true, .width = 7},
      {.title = "RANK", .right = true},
      {.title = "WORKER", .width = 8},
      {.title = "GEN", .right = true},
      {.title = "LOSS", .right = true, .width = 7},
      {.title = "GRAD NORM", .right = true},
      {.title = "RATE", .right = true, .width = 9},
      {.title = "MICRO", .right = true},
      {.title = "STEP MS", .right = true, .width = 8},
      {.title = "DATA", .right = true, .width = 6},
      {.title = "FORWARD", .right = true},
      {.title = "BACKWARD", .right = true},
      {.title = "WAIT", .right = true, .width = 7},
      {.title = "UPDATE", .right = true},
      {.title = "HELD-OUT", .right = true},
  };
}

std::vector<std::string> StepRow(const v1::StepMetrics& row) {
  return {
      absl::StrCat(row.step()),
      absl::StrCat(row.rank()),
      OneLine(WithoutPrefix("workers/", row.worker())),
      absl::StrCat(row.generation()),
      absl::StrFormat("%.4f", row.loss()),
      absl::StrFormat("%.4f", row.gradient_norm()),
      row.skipped() ? "skipped" : absl::StrFormat("%.3e", row.learning_rate()),
      absl::StrCat(row.micro_batch_count()),
      Milliseconds(row.step_duration()),
      Milliseconds(row.data_wait()),
      Milliseconds(row.forward()),
      Milliseconds(row.backward()),
      Milliseconds(row.exposed_communication()),
      Milliseconds(row.update()),
      row.has_held_out_loss() ? absl::StrFormat("%.4f", row.held_out_loss())
                              : "",
  };
}

std::string StepCsvTitles() {
  return absl::StrCat(
      absl::StrJoin(kCsvColumns, ",",
                    [](std::string* out, const CsvColumn& column) {
                      out->append(column.title);
                    }),
      "\n");
}

std::string StepCsvRow(const v1::StepMetrics& row) {
  return absl::StrCat(
      absl::StrJoin(kCsvColumns, ",",
                    [&](std::string* out, const CsvColumn& column) {
                      out->append(column.value(row));
                    }),
      "\n");
}

absl::StatusOr<StepRange> ParseStepRange(absl::string_view text) {
  const auto fault = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat("--steps: expected FIRST:LAST, FIRST:, :LAST or one step, "
                     "got ",
                     Quoted(text)));
  };
  constexpr int64_t kStepMax = std::numeric_limits<int64_t>::max();
  StepRange range;
  const size_t colon = text.find(':');
  const absl::string_view first = text.substr(0, colon);
  const absl::string_view last =
      colon == absl::string_view::npos ? first : text.substr(colon + 1);
  if (colon == absl::string_view::npos && text.empty()) return fault();
  if (!first.empty()) {
    const auto step = ParseInteger(first, 0, kStepMax);
    if (!step.ok()) return fault();
    range.first = *step;
  }
  if (!last.empty()) {
    const auto step = ParseInteger(last, range.first, kStepMax);
    if (!step.ok()) return fault();
    range.last = *step;
  }
  return range;
}

}  // namespace lockstep::cli
