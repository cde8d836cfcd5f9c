#include "cli/step_rows.h"

#include <algorithm>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace lockstep::cli {
namespace {

using ::testing::ElementsAre;

v1::StepMetrics Sample() {
  v1::StepMetrics row;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(R"(
    job: "jobs/a" generation: 2 step: 17 rank: 1 worker: "workers/w1"
    end_time { seconds: 1700000000 nanos: 250000000 }
    loss: 2.3123456789 gradient_norm: 0.5 learning_rate: 0.002
    token_count: 4096 micro_batch_count: 4
    step_duration { seconds: 1 nanos: 500000 }
    data_wait { nanos: 100000 } forward { nanos: 300000000 }
    backward { nanos: 600000000 } exposed_communication { nanos: 50000000 }
    update { nanos: 50000000 } communication { nanos: 70000000 }
    sent_bytes: 26214400 bucket_count: 7 overlapped_bucket_count: 5
  )",
                                                            &row));
  return row;
}

TEST(StepRowsTest, TableRow) {
  v1::StepMetrics row = Sample();
  EXPECT_THAT(
      StepRow(row),
      ElementsAre("17", "1", "w1", "2", "2.3123", "0.5000", "2.000e-03", "4",
                  "1000.5", "0.1", "300.0", "600.0", "50.0", "50.0", ""));
  row.set_held_out_loss(2.5);
  EXPECT_EQ(StepRow(row).back(), "2.5000");
  row.set_skipped(true);
  EXPECT_EQ(StepRow(row)[6], "skipped");
  EXPECT_EQ(StepRow(row).size(), StepColumns().size());
}

TEST(StepRowsTest, CsvRowHasEveryFieldInFull) {
  EXPECT_EQ(StepCsvTitles(),
            "job,step,rank,worker,generation,end_time,loss_nats,gradient_norm,"
            "learning_rate,token_count,micro_batch_count,step_ms,data_wait_ms,"
            "forward_ms,backward_ms,exposed_communication_ms,update_ms,"
            "communication_ms,sent_bytes,held_out_loss_nats,evaluation_ms,"
            "held_out_token_count,skipped,bucket_count,overlapped_bucket_count,"
            "skip_reason,wide_bucket_count,device_memory_bytes,"
            "peak_resident_bytes,loss_spike,checkpoint_step_count,"
            "checkpoint_failure,checkpoint_stall_ms\n");
  v1::StepMetrics row = Sample();
  EXPECT_EQ(StepCsvRow(row),
            "jobs/a,17,1,workers/w1,2,2023-11-14T22:13:20.25Z,2.3123456789,0.5,"
            "0.002,4096,4,1000.5,0.1,300,600,50,50,70,26214400,,,,0,7,5,,0,0,0,"
            "0,0,,0\n");
  row.set_held_out_loss(2.5);
  row.set_held_out_token_count(99);
  row.mutable_evaluation()->set_nanos(1'000'000);
  row.set_worker("a\"b,c");
  row.set_skipped(true);
  row.set_skip_reason("why");
  EXPECT_EQ(
      StepCsvRow(row),
      "jobs/a,17,1,\"a\"\"b,c\",2,2023-11-14T22:13:20.25Z,2.3123456789,"
      "0.5,0.002,4096,4,1000.5,0.1,300,600,50,50,70,26214400,2.5,1,99,1,7,5,"
      "why,0,0,0,0,0,,0\n");
  // As many columns as StepMetrics has fields.
  const std::string titles = StepCsvTitles();
  EXPECT_EQ(std::count(titles.begin(), titles.end(), ',') + 1,
            v1::StepMetrics::descriptor()->field_count());
}

TEST(StepRowsTest, StepRanges) {
  struct {
    const char* text;
    int64_t first;
    int64_t last;  // -1: none.
  } const kCases[] = {{"5:9", 5, 9}, {"5:", 5, -1},     {":9", 0, 9},
                      {":", 0, -1},  {"7", 7, 7},       {"0", 0, 0},
                      {"7:7", 7, 7}, {"1e3:", 1000, -1}};
  for (const auto& c : kCases) {
    const auto range = ParseStepRange(c.text);
    ASSERT_TRUE(range.ok()) << c.text;
    EXPECT_EQ(range->first, c.first) << c.text;
    EXPECT_EQ(range->last.value_or(-1), c.last) << c.text;
  }
  for (const char* text :
       {"", "a", "9:5", "-1", "-1:5", "1:2:3", "1.5", "1-5"}) {
    EXPECT_EQ(ParseStepRange(text).status().code(),
              absl::StatusCode::kInvalidArgument)
        << text;
  }
}

}  // namespace
}  // namespace lockstep::cli
