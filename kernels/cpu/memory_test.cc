#include "kernels/cpu/memory.h"

#include <gtest/gtest.h>

namespace lockstep::kernels::cpu {
namespace {

constexpr char kMeminfo[] =
    "MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:    600 kB\n";

TEST(HostMemoryTest, WithoutAGroupTheMachineCounts) {
  for (const char* unlimited : {"", "max\n"}) {
    const HostMemory memory = ParseHostMemory(kMeminfo, unlimited, "5\n");

    EXPECT_EQ(memory.total_bytes, 1000 * 1024);
    EXPECT_EQ(memory.available_bytes, 600 * 1024);
  }
}

TEST(HostMemoryTest, AGroupLimitsWhatIsThere) {
  const HostMemory memory = ParseHostMemory(kMeminfo, "500000\n", "100000\n");

  EXPECT_EQ(memory.total_bytes, 500000);
  EXPECT_EQ(memory.available_bytes, 400000);
  // Used above the limit, as happens when the limit is lowered.
  EXPECT_EQ(ParseHostMemory(kMeminfo, "1000", "2000").available_bytes, 0);
}

TEST(HostMemoryTest, ThisMachineHasMemory) {
  const HostMemory memory = ReadHostMemory();

  EXPECT_GT(memory.total_bytes, 0);
  EXPECT_GT(memory.available_bytes, 0);
  EXPECT_LE(memory.available_bytes, memory.total_bytes);
}

}  // namespace
}  // namespace lockstep::kernels::cpu
