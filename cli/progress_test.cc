#include "cli/progress.h"

#include <sstream>

#include "cli/text.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace lockstep::cli {
namespace {

using ::testing::HasSubstr;

class FakeClock : public Clock {
 public:
  Instant Now() override { return now; }
  absl::Time WallNow() override { return absl::UnixEpoch(); }
  Instant now;
};

v1::Job JobOf(const std::string& text) {
  v1::Job job;
  job.set_name("jobs/a");
  google::protobuf::TextFormat::Parser parser;
  EXPECT_TRUE(parser.MergeFromString(text, &job));
  return job;
}

constexpr char kRunning[] = R"(
  state: RUNNING
  progress { step_count: 120 max_steps: 300 loss: 2.31214 held_out_loss: 2.401
             held_out_step_count: 100 tokens_per_second: 12345
             remaining { seconds: 80 } }
)";

TEST(ProgressTest, TextSaysWhatIsKnown) {
  EXPECT_EQ(ProgressText(JobOf("state: QUEUED")), "no step yet");
  EXPECT_EQ(ProgressText(JobOf(kRunning)),
            "step 120/300, loss 2.3121, held-out 2.4010 at step 100, 12.3k "
            "tokens/s, 1m20s left");
  EXPECT_EQ(ProgressText(JobOf("state: RUNNING progress { step_count: 3 "
                               "loss: 5 }")),
            "step 3, loss 5.0000");
  EXPECT_EQ(ProgressText(JobOf("state: RUNNING progress { step_count: 3 "
                               "skipped_step_count: 3 }")),
            "step 3, loss -, 3 skipped");
  EXPECT_EQ(ProgressText(JobOf("state: RUNNING progress { step_count: 3 "
                               "loss: 5 skipped_step_count: 2 }")),
            "step 3, loss 5.0000, 2 skipped");
  EXPECT_EQ(ProgressText(JobOf("state: RUNNING progress { step_count: 30 "
                               "loss: 5 loss_spike_count: 1 "
                               "last_loss_spike_step: 27 }")),
            "step 30, loss 5.0000, loss jumped at step 27");
  EXPECT_EQ(ProgressText(JobOf("state: RUNNING progress { step_count: 30 "
                               "loss: 5 loss_spike_count: 3 "
                               "last_loss_spike_step: 27 }")),
            "step 30, loss 5.0000, loss jumped at step 27 (3 times in all)");
  // The speed of what has ended is nobody's.
  v1::Job ended = JobOf(kRunning);
  ended.set_state(v1::Job::COMPLETED);
  EXPECT_EQ(ProgressText(ended),
            "step 120/300, loss 2.3121, held-out 2.4010 at step 100");
}

TEST(ProgressTest, BarFillsTheLineAndNoMore) {
  EXPECT_EQ(
      ProgressBar(JobOf(kRunning), 100),
      "RUNNING [=========>             ]  40% 120/300  loss 2.3121  held-out "
      "2.4010  12.3k tok/s  ETA 1m20s");
  for (int columns = 1; columns < 200; ++columns) {
    EXPECT_LE(DisplayWidth(ProgressBar(JobOf(kRunning), columns)), columns);
  }
  EXPECT_THAT(ProgressBar(JobOf(kRunning), 120),
              HasSubstr("]  40% 120/300  loss 2.3121  held-out 2.4010  12.3k "
                        "tok/s  ETA 1m20s"));
  EXPECT_EQ(
      ProgressBar(JobOf("state: QUEUED state_reason: 'waits for\\n1'"), 80),
      "QUEUED  waits for\\n1");
  EXPECT_THAT(ProgressBar(JobOf("state: COMPLETED progress { step_count: 5 "
                                "max_steps: 5 loss: 1 }"),
                          80),
              HasSubstr("[========================================] 100% 5/5"));
}

TEST(ProgressTest, OnATerminalOneLineIsWrittenOver) {
  std::ostringstream out;
  FakeClock clock;
  {
    ProgressView view(out, /*terminal=*/true, 30, clock);
    view.Show(JobOf("state: QUEUED"));
    view.Show(JobOf("state: FORMING"));
  }
  EXPECT_EQ(out.str(), "\rQUEUED\x1B[K\rFORMING\x1B[K\n");
}

TEST(ProgressTest, ElsewhereEveryChangeIsALineAndStepsAreOneInTenSeconds) {
  std::ostringstream out;
  FakeClock clock;
  ProgressView view(out, /*terminal=*/false, 80, clock);
  const auto at_step = [](int step) {
    v1::Job job = JobOf("state: RUNNING progress { max_steps: 9 loss: 1 }");
    job.mutable_progress()->set_step_count(step);
    return job;
  };

  view.Show(JobOf("state: QUEUED state_reason: 'waits for 1 worker'"));
  view.Show(at_step(1));
  view.Show(at_step(2));
  clock.now = {absl::Milliseconds(9999)};
  view.Show(at_step(3));
  clock.now = {absl::Seconds(10)};
  view.Show(at_step(4));
  v1::Job evaluated = at_step(5);
  evaluated.mutable_progress()->set_held_out_loss(2);
  evaluated.mutable_progress()->set_held_out_step_count(5);
  view.Show(evaluated);
  evaluated.set_state(v1::Job::COMPLETED);
  view.Show(evaluated);

  EXPECT_EQ(out.str(),
            "jobs/a QUEUED: no step yet (waits for 1 worker)\n"
            "jobs/a RUNNING: step 1/9, loss 1.0000\n"
            "jobs/a RUNNING: step 4/9, loss 1.0000\n"
            "jobs/a RUNNING: step 5/9, loss 1.0000, held-out 2.0000 at step 5\n"
            "jobs/a COMPLETED: step 5/9, loss 1.0000, held-out 2.0000 at step "
            "5\n");
}

}  // namespace
}  // namespace lockstep::cli
