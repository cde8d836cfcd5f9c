#include "common/step_work.h"

#include "gtest/gtest.h"

namespace lockstep {
namespace {

ModelConfig Gpt2() {
  ModelConfig c;
  c.vocabulary = 50;
  c.position_max = 8;
  c.width = 6;
  c.layer_count = 2;
  c.SetPlainHeads(2);
  c.inner_width = 24;
  return c;
}

TEST(StepWorkTest, CountsEveryProductOnceByHand) {
  // Four tokens, weights of 6 x (18 + 6 + 24 + 24) = 432 in each block, and
  // 4 + 3 + 2 + 1 pairs in heads that are 6 wide together.
  const SequenceWork work = WorkOfSequence(Gpt2(), 4, false);

  EXPECT_EQ(work.forward_flops, 2 * 2 * (4 * 432 + 2 * 10 * 6));
  EXPECT_EQ(work.backward_flops,
            2 * (2 * (2 * 4 * 432 + 5 * 10 * 6) + 3 * 4 * 50 * 6));
  EXPECT_EQ(work.recompute_flops, 0);
}

TEST(StepWorkTest, RecomputeIsAForwardMore) {
  const SequenceWork work = WorkOfSequence(Gpt2(), 4, true);

  EXPECT_EQ(work.recompute_flops, work.forward_flops);
  EXPECT_EQ(work.total_flops(), 2 * work.forward_flops + work.backward_flops);
}

TEST(StepWorkTest, SharedKeysAndGatesAreCountedAsTheyAre) {
  ModelConfig c = Gpt2();
  c.family = ModelFamily::kLlama;
  c.head_count = 4;
  c.key_value_head_count = 2;
  c.head_width = 2;
  c.inner_width = 10;
  // 6 x (8 + 4 + 4), 8 x 6, 6 x 20 and 10 x 6; heads 8 wide together.
  const SequenceWork work = WorkOfSequence(c, 4, false);

  EXPECT_EQ(work.forward_flops,
            2 * 2 * (4 * (96 + 48 + 120 + 60) + 2 * 10 * 8));
}

}  // namespace
}  // namespace lockstep
