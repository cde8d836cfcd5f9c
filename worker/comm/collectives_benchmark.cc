// Speed of collectives over TCP: bazel run //worker/comm:collectives_benchmark
// Ranks are threads of one process; bytes are of the reduced array.
#include <cstdlib>
#include <vector>

#include "benchmark/benchmark.h"
#include "worker/comm/test_group.h"

namespace lockstep {
namespace {

void BM_AllReduceSum(benchmark::State& state) {
  const int world = static_cast<int>(state.range(0));
  const int64_t n = state.range(1) / int64_t{sizeof(int64_t)};
  auto group = MakeTestGroup(GroupKind::kGloo, world);
  std::vector<std::vector<int64_t>> data(world, std::vector<int64_t>(n, 1));
  // Many in a row, so that starting threads does not count.
  const int calls = n < 100'000 ? 200 : 8;
  for (auto _ : state) {
    ForEachRank(world, [&](int rank) {
      for (int i = 0; i < calls; ++i) {
        if (!group[rank]->AllReduceSum(data[rank].data(), n).ok()) abort();
      }
    });
  }
  state.SetBytesProcessed(state.iterations() * calls * n * sizeof(int64_t));
  state.counters["per_call"] = benchmark::Counter(
      static_cast<double>(state.iterations() * calls),
      benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(BM_AllReduceSum)
    ->ArgNames({"world", "bytes"})
    ->ArgsProduct({{2, 4}, {8, 8 << 10, 1 << 20, 25 << 20, 100 << 20}})
    ->UseRealTime()
    ->MeasureProcessCPUTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace lockstep

BENCHMARK_MAIN();
