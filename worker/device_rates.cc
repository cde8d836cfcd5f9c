#include "worker/device_rates.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/status.h"
#include "kernels/bfloat16.h"
#include "kernels/device.h"
#include "kernels/matmul.h"
#include "worker/comm/communicator.h"
#include "worker/comm/group_listener.h"
#include "worker/comm/host_address.h"
#include "worker/link/unique_fd.h"

namespace lockstep {
namespace {

// Of a product: as large as those of models that are worth planning.
constexpr int64_t kProductRowsPerThread = 512;
constexpr int64_t kProductWidth = 768;

// Twice this is more than most caches hold.
constexpr int64_t kCopyBytes = int64_t{32} << 20;

// Of an array to sum: a bucket.
constexpr int64_t kSumElements = int64_t{1} << 19;

// What is sustained, not the best: processors slow down under load.
double MedianSeconds(std::vector<absl::Duration> tries) {
  const auto middle = tries.begin() + static_cast<int64_t>(tries.size()) / 2;
  std::nth_element(tries.begin(), middle, tries.end());
  return std::max(absl::ToDoubleSeconds(*middle), 1e-9);
}

// How long `work` takes.
absl::StatusOr<double> SecondsOf(absl::Duration time,
                                 const std::function<absl::Status()>& work) {
  Clock& clock = RealClock();
  RETURN_IF_ERROR(work());  // Not counted: pages, code and caches are warmed.
  std::vector<absl::Duration> tries;
  const Instant end = clock.Now() + time;
  do {
    const Instant start = clock.Now();
    RETURN_IF_ERROR(work());
    tries.push_back(clock.Now() - start);
  } while (clock.Now() < end);
  return MedianSeconds(std::move(tries));
}

// Of the three products of a layer: y = x w, dx = dy w^T and dw += x^T dy.
template <typename T>
absl::StatusOr<double> ProductRate(kernels::Device& device,
                                   kernels::Stream& stream,
                                   absl::Duration time) {
  const int64_t rows =
      kProductRowsPerThread * std::max(device.thread_count(), 1);
  const int64_t width = kProductWidth;
  ASSIGN_OR_RETURN(const auto x, device.Allocate(rows * width * sizeof(T)));
  ASSIGN_OR_RETURN(const auto w, device.Allocate(width * width * sizeof(T)));
  ASSIGN_OR_RETURN(const auto y, device.Allocate(rows * width * sizeof(float)));
  ASSIGN_OR_RETURN(const auto dw,
                   device.Allocate(width * width * sizeof(float)));
  const kernels::MatMulOperand<T> x_in = {.data = x->template as<T>(),
                                          .stride = width};
  const kernels::MatMulOperand<T> w_in = {.data = w->template as<T>(),
                                          .stride = width};
  kernels::MatMulOperand<T> x_transposed = x_in;
  kernels::MatMulOperand<T> w_transposed = w_in;
  x_transposed.transposed = w_transposed.transposed = true;
  float* const y_out = y->template as<float>();
  float* const dw_out = dw->template as<float>();
  const auto products = [&]() -> absl::Status {
    RETURN_IF_ERROR(
        kernels::MatMul(stream, rows, width, width, x_in, w_in, y_out, width));
    RETURN_IF_ERROR(kernels::MatMul(stream, rows, width, width, x_in,
                                    w_transposed, y_out, width));
    RETURN_IF_ERROR(kernels::MatMul(stream, width, width, rows, x_transposed,
                                    x_in, dw_out, width, {.accumulate = true}));
    return stream.Synchronize();
  };
  ASSIGN_OR_RETURN(const double seconds, SecondsOf(time, products));
  return 3 * 2 * static_cast<double>(rows * width * width) / seconds;
}

absl::StatusOr<double> MemoryRate(kernels::Device& device,
                                  kernels::Stream& stream,
                                  absl::Duration time) {
  ASSIGN_OR_RETURN(const auto from, device.Allocate(kCopyBytes));
  ASSIGN_OR_RETURN(const auto to, device.Allocate(kCopyBytes));
  const auto copy = [&]() -> absl::Status {
    RETURN_IF_ERROR(stream.CopyOnDevice(to->data(), from->data(), kCopyBytes));
    return stream.Synchronize();
  };
  ASSIGN_OR_RETURN(const double seconds, SecondsOf(time, copy));
  return 2 * kCopyBytes / seconds;  // Read and written.
}

// What one of two ranks sends.
absl::StatusOr<double> CollectiveRate(const RateOptions& options,
                                      Collectives collectives) {
  Clock& clock = RealClock();
  constexpr int kWorld = 2;
  constexpr absl::Duration kTimeout = absl::Seconds(5);
  std::vector<std::unique_ptr<GroupListener>> listeners;
  for (int rank = 0; rank < kWorld; ++rank) {
    ASSIGN_OR_RETURN(auto listener,
                     GroupListener::Listen(rank, kWorld,
                                           {.tcp = {.host = options.listen_host,
                                                    .timeout = kTimeout,
                                                    .session = "rates"},
                                            .collectives = collectives},
                                           clock));
    listeners.push_back(std::move(listener));
  }
  std::vector<absl::StatusOr<double>> rates(kWorld);
  const auto run = [&](int rank) -> absl::StatusOr<double> {
    std::vector<std::string> addresses;
    for (const auto& l : listeners) addresses.push_back(l->addresses()[rank]);
    ASSIGN_OR_RETURN(
        const auto communicator,
        listeners[rank]->Connect(addresses, clock.Now() + kTimeout));
    std::vector<int64_t> sums(kSumElements);
    // Both must sum as often.
    const auto all = [&]() {
      return communicator->AllReduceSum(sums.data(), kSumElements);
    };
    RETURN_IF_ERROR(all());
    const int64_t sent_before = communicator->sent_bytes();
    RETURN_IF_ERROR(all());
    const auto sent =
        static_cast<double>(communicator->sent_bytes() - sent_before);
    std::vector<absl::Duration> tries;
    int64_t go_on = 1;
    const Instant end = clock.Now() + options.time_each;
    while (go_on != 0) {
      const Instant start = clock.Now();
      RETURN_IF_ERROR(all());
      tries.push_back(clock.Now() - start);
      go_on = clock.Now() < end ? 1 : 0;
      RETURN_IF_ERROR(communicator->AllReduceMax(&go_on, 1));
    }
    return sent / MedianSeconds(std::move(tries));
  };
  std::thread other([&] { rates[1] = run(1); });
  rates[0] = run(0);
  other.join();
  RETURN_IF_ERROR(rates[1].status());
  return rates[0];
}

}  // namespace

DeviceRates MeasureRates(const RateOptions& options) {
  DeviceRates rates;
  {
    const auto device = kernels::CreateCpuDevice(options.threads);
    if (!device.ok()) return rates;
    const auto stream = (*device)->CreateStream();
    if (!stream.ok()) return rates;
    rates.float32_flops =
        ProductRate<float>(**device, **stream, options.time_each).value_or(0);
    if ((*device)->has_bfloat16()) {
      rates.bfloat16_flops =
          ProductRate<kernels::Bfloat16>(**device, **stream, options.time_each)
              .value_or(0);
    }
    rates.memory_bytes =
        MemoryRate(**device, **stream, options.time_each).value_or(0);
  }
  if (options.collectives != Collectives::kTcp) {
    rates.shared_memory_bytes =
        CollectiveRate(options, Collectives::kSharedMemory).value_or(0);
  }
  const double tcp = CollectiveRate(options, Collectives::kTcp).value_or(0);
  const double link = LinkBytesPerSecond(options.listen_host).value_or(0);
  rates.network_bytes = link > 0 ? std::min(tcp, link) : tcp;
  return rates;
}

absl::StatusOr<DeviceRates> MeasureRatesApart(const RateOptions& options,
                                              absl::Duration timeout) {
  static_assert(std::is_trivially_copyable_v<DeviceRates>);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::UnavailableError(absl::StrCat("pipe: ", strerror(errno)));
  }
  UniqueFd in(ends[0]);
  UniqueFd out(ends[1]);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) {
    return absl::UnavailableError(absl::StrCat("fork: ", strerror(errno)));
  }
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    const DeviceRates rates = MeasureRates(options);
    // Less than a pipe takes at once.
    _exit(write(out.get(), &rates, sizeof(rates)) == sizeof(rates) ? 0 : 1);
  }
  out.Close();
  DeviceRates rates;
  pollfd wait = {.fd = in.get(), .events = POLLIN, .revents = 0};
  int ready;
  do {
    ready =
        poll(&wait, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout)));
  } while (ready < 0 && errno == EINTR);
  const bool came = ready > 0 && read(in.get(), &rates, sizeof(rates)) ==
                                     static_cast<ssize_t>(sizeof(rates));
  if (!came) kill(child, SIGKILL);
  int state = 0;
  while (waitpid(child, &state, 0) < 0 && errno == EINTR) {
  }
  if (came) return rates;
  if (ready == 0) {
    return absl::DeadlineExceededError(
        absl::StrCat("not done within ", absl::FormatDuration(timeout)));
  }
  return absl::UnavailableError(
      WIFSIGNALED(state)
          ? absl::StrCat("its process died of signal ", WTERMSIG(state))
          : absl::StrCat("its process ended with exit code ",
                         WEXITSTATUS(state)));
}

}  // namespace lockstep
