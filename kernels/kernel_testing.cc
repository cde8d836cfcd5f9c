#include "kernels/kernel_testing.h"

#include <numbers>
#include <utility>

#include "common/check.h"
#include "common/philox.h"
#include "kernels/cpu/targets.h"

namespace lockstep::kernels {

KernelTest::KernelTest() {
  cpu::SetRunningTargetForTest(GetParam() == "avx512" ? cpu::Target::kAvx512
                                                      : cpu::Target::kAvx2);
}

KernelTest::~KernelTest() { cpu::SetRunningTargetForTest(cpu::Target::kNone); }

Stream& KernelTest::StreamOf(int thread_count) {
  for (Computer& computer : computers_) {
    if (computer.device->thread_count() == thread_count) {
      return *computer.stream;
    }
  }
  auto device = CreateCpuDevice(thread_count);
  LS_CHECK(device.ok());
  auto stream = (*device)->CreateStream();
  LS_CHECK(stream.ok());
  computers_.push_back({*std::move(device), *std::move(stream)});
  return *computers_.back().stream;
}

std::vector<std::string> TargetNames() {
  std::vector<std::string> names;
  if (cpu::BestTarget() >= cpu::Target::kAvx2) names.push_back("avx2");
  if (cpu::BestTarget() >= cpu::Target::kAvx512) names.push_back("avx512");
  return names;
}

std::vector<float> RandomFloats(uint64_t seed, int64_t n, float scale) {
  std::vector<float> values(n);
  for (int64_t i = 0; i < n; ++i) {
    const PhiloxBlock block =
        Philox4x32({static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32),
                    static_cast<uint32_t>(seed), 0},
                   {1, 2});
    // Box and Muller.
    values[i] = static_cast<float>(
        scale * std::sqrt(-2 * std::log(UniformFrom(block[0]))) *
        std::cos(2 * std::numbers::pi * UniformFrom(block[1])));
  }
  return values;
}

}  // namespace lockstep::kernels
