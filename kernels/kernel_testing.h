// What kernel tests share: devices, random arrays at odd places, comparison.
#ifndef KERNELS_KERNEL_TESTING_H_
#define KERNELS_KERNEL_TESTING_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device.h"

namespace lockstep::kernels {

// Runs each test on every instruction set that this processor has; the
// parameter is its name ("avx2", "avx512").
class KernelTest : public testing::TestWithParam<std::string> {
 protected:
  KernelTest();
  ~KernelTest() override;

  // A stream of a device with so many threads; the device lives as long as the
  // test.
  Stream& StreamOf(int thread_count);

 private:
  struct Computer {
    std::unique_ptr<Device> device;
    std::unique_ptr<Stream> stream;
  };
  std::vector<Computer> computers_;
};

std::vector<std::string> TargetNames();

#define LS_INSTANTIATE_KERNEL_TEST(name)                                    \
  INSTANTIATE_TEST_SUITE_P(Targets, name, testing::ValuesIn(TargetNames()), \
                           [](const auto& p) { return p.param; })

// `n` values of a normal distribution with deviation `scale`; a function of its
// arguments.
std::vector<float> RandomFloats(uint64_t seed, int64_t n, float scale = 1);

// `values` behind `offset` elements: not aligned to a vector, to a cache line,
// or at all beyond its own size; heap memory, so that a sanitizer sees a step
// past its end.
template <typename T>
class Unaligned {
 public:
  Unaligned(const std::vector<T>& values, int64_t offset)
      : memory_(new T[values.size() + offset]),
        n_(values.size()),
        offset_(offset) {
    std::copy(values.begin(), values.end(), data());
  }
  T* data() { return memory_.get() + offset_; }
  std::vector<T> values() { return std::vector<T>(data(), data() + n_); }

 private:
  std::unique_ptr<T[]> memory_;
  size_t n_;
  int64_t offset_;
};

// Equal bit by bit, NaNs included.
template <typename T>
testing::AssertionResult BitEqual(const std::vector<T>& a,
                                  const std::vector<T>& b) {
  if (a.size() != b.size()) {
    return testing::AssertionFailure()
           << "sizes " << a.size() << " and " << b.size();
  }
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(T)) != 0) {
      return testing::AssertionFailure()
             << "at " << i << ": " << a[i] << " and " << b[i];
    }
  }
  return testing::AssertionSuccess();
}

// |actual[i] - expected[i]| <= absolute + relative |expected[i]| for all i.
template <typename T>
testing::AssertionResult AllNear(const std::vector<T>& actual,
                                 const std::vector<double>& expected,
                                 double absolute, double relative) {
  if (actual.size() != expected.size()) {
    return testing::AssertionFailure()
           << "sizes " << actual.size() << " and " << expected.size();
  }
  for (size_t i = 0; i < actual.size(); ++i) {
    const double error = std::abs(actual[i] - expected[i]);
    // Written so that a NaN fails.
    if (!(error <= absolute + relative * std::abs(expected[i]))) {
      return testing::AssertionFailure()
             << "at " << i << " of " << actual.size() << ": " << actual[i]
             << ", expected " << expected[i] << " within " << absolute << " + "
             << relative << " of it";
    }
  }
  return testing::AssertionSuccess();
}

inline std::vector<double> ToDouble(const std::vector<float>& v) {
  return std::vector<double>(v.begin(), v.end());
}

}  // namespace lockstep::kernels

#endif  // KERNELS_KERNEL_TESTING_H_
