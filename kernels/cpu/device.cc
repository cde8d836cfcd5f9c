#include "kernels/cpu/device.h"

#include <dnnl.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/check.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/targets.h"

namespace lockstep::kernels {
namespace {

constexpr int64_t kCacheLineBytes = 64;
constexpr int64_t kHugePageBytes = int64_t{2} << 20;

class CpuBuffer : public Buffer {
 public:
  // Counts itself in `allocated`.
  CpuBuffer(void* data, int64_t byte_count,
            std::shared_ptr<std::atomic<int64_t>> allocated)
      : data_(data), byte_count_(byte_count), allocated_(std::move(allocated)) {
    *allocated_ += byte_count_;
  }
  ~CpuBuffer() override {
    std::free(data_);
    *allocated_ -= byte_count_;
  }
  void* data() override { return data_; }
  int64_t byte_count() const override { return byte_count_; }

 private:
  void* const data_;
  const int64_t byte_count_;
  const std::shared_ptr<std::atomic<int64_t>> allocated_;
};

// Work is done when it is enqueued: every point is reached at once.
class CpuEvent : public Event {
 public:
  absl::Status Synchronize() override { return absl::OkStatus(); }
};

class CpuStream : public Stream {
 public:
  CpuStream(Device& device, ThreadPool& pool) : device_(device), pool_(pool) {}

  Device& device() override { return device_; }
  Backend backend() const override { return Backend::kCpu; }
  ThreadPool& pool() { return pool_; }

  absl::Status Record(Event&) override { return absl::OkStatus(); }
  absl::Status Wait(Event&) override { return absl::OkStatus(); }
  absl::Status Synchronize() override { return absl::OkStatus(); }

  absl::Status CopyToDevice(void* device_to, const void* host_from,
                            int64_t bytes) override {
    return Copy("CopyToDevice", device_to, host_from, bytes);
  }
  absl::Status CopyToHost(void* host_to, const void* device_from,
                          int64_t bytes) override {
    return Copy("CopyToHost", host_to, device_from, bytes);
  }
  absl::Status CopyOnDevice(void* to, const void* from,
                            int64_t bytes) override {
    return Copy("CopyOnDevice", to, from, bytes);
  }

  absl::Status Zero(void* device_memory, int64_t bytes) override {
    if (bytes < 0 || (bytes > 0 && device_memory == nullptr)) {
      return absl::InvalidArgumentError(
          absl::StrCat("Zero: null pointer or bytes=", bytes, " below 0"));
    }
    char* const to = static_cast<char*>(device_memory);
    ParallelForBlocks(pool_, bytes, kCopyBlockBytes,
                      [&](int64_t begin, int64_t end, int) {
                        std::memset(to + begin, 0, end - begin);
                      });
    return absl::OkStatus();
  }

 private:
  static constexpr int64_t kCopyBlockBytes = int64_t{1} << 20;

  absl::Status Copy(const char* what, void* to_memory, const void* from_memory,
                    int64_t bytes) {
    if (bytes < 0 ||
        (bytes > 0 && (to_memory == nullptr || from_memory == nullptr))) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": null pointer or bytes=", bytes, " below 0"));
    }
    char* const to = static_cast<char*>(to_memory);
    const char* const from = static_cast<const char*>(from_memory);
    ParallelForBlocks(pool_, bytes, kCopyBlockBytes,
                      [&](int64_t begin, int64_t end, int) {
                        std::memcpy(to + begin, from + begin, end - begin);
                      });
    return absl::OkStatus();
  }

  Device& device_;
  ThreadPool& pool_;
};

std::string ProcessorName() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    absl::string_view rest = line;
    if (!absl::ConsumePrefix(&rest, "model name")) continue;
    const size_t colon = rest.find(": ");
    if (colon != absl::string_view::npos) {
      return std::string(rest.substr(colon + 2));
    }
  }
  return "unknown CPU";
}

// Without AVX-512 oneDNN has none; with it but without its instructions for
// bfloat16 they are slower than float32's.
bool HasBfloat16() {
  const auto isa = static_cast<unsigned>(dnnl_get_effective_cpu_isa());
  return (isa & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
}

// What decides the bits: our instruction set, and oneDNN's kernels, which the
// environment can hold down (ONEDNN_MAX_CPU_ISA).
std::string NumericClass() {
  const dnnl_version_t& version = *dnnl_version();
  const auto isa = dnnl_get_effective_cpu_isa();
  // The sets are bit masks: each contains those it extends.
  const auto has = [isa](unsigned set) { return (isa & set) == set; };
  const char* products = has(dnnl_cpu_isa_avx512_core_bf16) ? "avx512_bf16"
                         : has(dnnl_cpu_isa_avx512_core)    ? "avx512"
                         : has(dnnl_cpu_isa_avx2)           ? "avx2"
                                                            : "sse41";
  const bool wide = cpu::BestTarget() == cpu::Target::kAvx512;
  const std::string library = absl::StrCat("onednn-", version.major, ".",
                                           version.minor, ".", version.patch);
  const bool same = wide == absl::StartsWith(products, "avx512");
  if (same) return absl::StrCat("cpu/", products, "/", library);
  // oneDNN was told to use less than the processor has.
  return absl::StrCat("cpu/", wide ? "avx512" : "avx2", "/", library, "-",
                      products);
}

class CpuDevice : public Device {
 public:
  CpuDevice(int thread_count, int64_t memory_bytes_max)
      : memory_bytes_max_(memory_bytes_max > 0
                              ? memory_bytes_max
                              : std::numeric_limits<int64_t>::max()),
        pool_(thread_count) {}

  Backend backend() const override { return Backend::kCpu; }
  std::string model_name() const override { return ProcessorName(); }
  std::string numeric_class() const override { return NumericClass(); }
  bool has_bfloat16() const override { return HasBfloat16(); }
  int64_t memory_bytes() const override {
    return std::min(cpu::ReadHostMemory().total_bytes, memory_bytes_max_);
  }
  int thread_count() const override { return pool_.thread_count(); }
  int64_t allocated_bytes() const override { return *allocated_; }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(int64_t bytes) override {
    if (bytes < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("Allocate: bytes=", bytes, ": expected 0 or more"));
    }
    // Linux promises memory it does not have and kills whoever touches it: ask
    // first.
    const int64_t available = cpu::ReadHostMemory().available_bytes;
    if (bytes > available) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "Allocate: ", bytes, " bytes of host memory wanted, ", available,
          " available: free memory, or train a smaller model or micro-batch"));
    }
    if (bytes > memory_bytes_max_ - *allocated_) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "Allocate: ", bytes, " bytes of host memory wanted, ",
          memory_bytes_max_ - *allocated_, " left of the ", memory_bytes_max_,
          " that may be had: allow more, or train a smaller model or "
          "micro-batch"));
    }
    // Huge pages: the products stride over megabytes.
    const int64_t alignment =
        bytes >= kHugePageBytes ? kHugePageBytes : kCacheLineBytes;
    const int64_t size = std::max<int64_t>(
        (bytes + alignment - 1) / alignment * alignment, alignment);
    void* const data = std::aligned_alloc(alignment, size);
    if (data == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "Allocate: ", bytes, " bytes of host memory wanted, refused by the ",
          "system (see ulimit -v)"));
    }
    if (alignment == kHugePageBytes) {
      // A hint: without huge pages it is only slower.
      (void)madvise(data, size, MADV_HUGEPAGE);
    }
    // Touches every page now, not at some step.
    std::memset(data, 0, size);
    return std::make_unique<CpuBuffer>(data, bytes, allocated_);
  }

  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override {
    return std::make_unique<CpuStream>(*this, pool_);
  }
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override {
    return std::make_unique<CpuEvent>();
  }

 private:
  const int64_t memory_bytes_max_;
  const std::shared_ptr<std::atomic<int64_t>> allocated_ =
      std::make_shared<std::atomic<int64_t>>(0);
  ThreadPool pool_;
};

}  // namespace

namespace cpu {

ThreadPool& PoolOf(Stream& stream) {
  LS_CHECK(stream.backend() == Backend::kCpu);
  return static_cast<CpuStream&>(stream).pool();
}

}  // namespace cpu

absl::StatusOr<std::unique_ptr<Device>> CreateCpuDevice(
    int thread_count, int64_t memory_bytes_max) {
  constexpr int kThreadCountMax = 1024;
  if (thread_count < 1 || thread_count > kThreadCountMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("CPU device: thread_count=", thread_count,
                     ": expected 1 to ", kThreadCountMax));
  }
  if (memory_bytes_max < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("CPU device: memory_bytes_max=", memory_bytes_max,
                     ": expected 0 or more"));
  }
  if (cpu::BestTarget() == cpu::Target::kNone) {
    return absl::UnimplementedError(
        absl::StrCat("CPU device: ", ProcessorName(),
                     " lacks AVX2 or FMA; use a processor that has both (x86 "
                     "since about 2013)"));
  }
  return std::make_unique<CpuDevice>(thread_count, memory_bytes_max);
}

}  // namespace lockstep::kernels
