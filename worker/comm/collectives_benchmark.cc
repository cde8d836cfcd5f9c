// Speed of collectives: bazel run //worker/comm:collectives_benchmark
// Ranks are threads of one process, but share no more than processes would;
// bytes are of the reduced array, and cpu_s_per_GB is that of all ranks.
#include <cstdlib>
#include <ctime>
#include <vector>

#include "benchmark/benchmark.h"
#include "worker/comm/test_group.h"

namespace lockstep {
namespace {

void BM_AllReduceSum(benchmark::State& state, GroupKind kind) {
  const int world = static_cast<int>(state.range(0));
  const int64_t n = state.range(1) / int64_t{sizeof(int64_t)};
  auto group = MakeTestGroup(kind, world);
  std::vector<std::vector<int64_t>> data(world, std::vector<int64_t>(n, 1));
  // Many in a row, so that starting threads does not count.
  const int calls = n < 100'000 ? 200 : 8;
  const clock_t cpu_start = clock();
  for (auto _ : state) {
    ForEachRank(world, [&](int rank) {
      for (int i = 0; i < calls; ++i) {
        if (!group[rank]->AllReduceSum(data[rank].data(), n).ok()) abort();
      }
    });
  }
  const double cpu_s =
      static_cast<double>(clock() - cpu_start) / CLOCKS_PER_SEC;
  const auto total_calls = static_cast<double>(state.iterations() * calls);
  const auto bytes = static_cast<double>(n * sizeof(int64_t));
  state.counters["GB_per_s"] = benchmark::Counter(total_calls * bytes / 1e9,
                                                  benchmark::Counter::kIsRate);
  state.counters["cpu_s_per_GB"] = cpu_s / (total_calls * bytes / 1e9);
  state.counters["per_call"] = benchmark::Counter(
      total_calls, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void Sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"world", "bytes"})
      ->ArgsProduct({{2, 4}, {8, 8 << 10, 1 << 20, 25 << 20, 100 << 20}})
      ->UseRealTime()
      ->MeasureProcessCPUTime()
      ->Unit(benchmark::kMillisecond);
}
BENCHMARK_CAPTURE(BM_AllReduceSum, tcp, GroupKind::kGloo)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_AllReduceSum, shared_memory, GroupKind::kSharedMemory)
    ->Apply(Sizes);

}  // namespace
}  // namespace lockstep

BENCHMARK_MAIN();
