#include "kernels/device.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace lockstep::kernels {
namespace {

TEST(CpuDeviceTest, ThreadCountMustBeInRange) {
  for (const int count : {-1, 0, 1025}) {
    const auto device = CreateCpuDevice(count);

    EXPECT_EQ(device.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(device.status().message().find(std::to_string(count)),
              absl::string_view::npos);
  }
}

TEST(CpuDeviceTest, SaysWhatItIs) {
  auto device = CreateCpuDevice(2);
  ASSERT_TRUE(device.ok()) << device.status();

  EXPECT_EQ((*device)->backend(), Backend::kCpu);
  EXPECT_EQ((*device)->thread_count(), 2);
  EXPECT_GT((*device)->memory_bytes(), int64_t{1} << 28);
  EXPECT_FALSE((*device)->model_name().empty());
  const std::string numerics = (*device)->numeric_class();
  EXPECT_EQ(numerics.rfind("cpu/avx", 0), 0u) << numerics;
  EXPECT_NE(numerics.find("/onednn-2."), std::string::npos) << numerics;
}

TEST(CpuDeviceTest, MemoryIsAlignedAndZero) {
  auto device = CreateCpuDevice(1);
  ASSERT_TRUE(device.ok()) << device.status();
  for (const int64_t bytes : {0, 1, 100, 5'000'000}) {
    auto buffer = (*device)->Allocate(bytes);
    ASSERT_TRUE(buffer.ok()) << buffer.status();

    ASSERT_NE((*buffer)->data(), nullptr);
    EXPECT_EQ((*buffer)->byte_count(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>((*buffer)->data()) % 64, 0u);
    const char* data = (*buffer)->as<char>();
    EXPECT_EQ(std::string(data, data + bytes), std::string(bytes, '\0'));
    // Dirty, for the next one to find if memory is reused as it is.
    std::memset((*buffer)->data(), 0x5a, bytes);
  }
}

TEST(CpuDeviceTest, MemoryThatIsTakenIsCounted) {
  auto device = CreateCpuDevice(1);
  ASSERT_TRUE(device.ok()) << device.status();
  auto a = (*device)->Allocate(1000);
  auto b = (*device)->Allocate(5'000'000);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ((*device)->allocated_bytes(), 5'001'000);
  b->reset();
  EXPECT_EQ((*device)->allocated_bytes(), 1000);
  // A buffer may outlive its device.
  device->reset();
}

TEST(CpuDeviceTest, NoMoreMemoryIsTakenThanMayBe) {
  auto device = CreateCpuDevice(1, 10'000'000);
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ((*device)->memory_bytes(), 10'000'000);
  auto most = (*device)->Allocate(9'999'000);
  ASSERT_TRUE(most.ok()) << most.status();

  const absl::Status refused = (*device)->Allocate(1001).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(refused.message().find("1000 left of the 10000000"),
            absl::string_view::npos)
      << refused;
  EXPECT_TRUE((*device)->Allocate(1000).ok());
  most->reset();
  EXPECT_TRUE((*device)->Allocate(10'000'000).ok());

  EXPECT_EQ(CreateCpuDevice(1, -1).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(CpuDeviceTest, MemoryThatIsNotThereIsRefused) {
  auto device = CreateCpuDevice(1);
  ASSERT_TRUE(device.ok()) << device.status();

  const auto buffer = (*device)->Allocate((*device)->memory_bytes() + 1);

  EXPECT_EQ(buffer.status().code(), absl::StatusCode::kResourceExhausted);
  // Asked for beforehand, not found out by the system.
  EXPECT_NE(buffer.status().message().find(" available"),
            absl::string_view::npos)
      << buffer.status();
  EXPECT_EQ((*device)->Allocate(-1).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(CpuDeviceTest, StreamsCopyInOrder) {
  for (const int thread_count : {1, 3}) {
    auto device = CreateCpuDevice(thread_count);
    ASSERT_TRUE(device.ok()) << device.status();
    auto stream = (*device)->CreateStream();
    auto event = (*device)->CreateEvent();
    ASSERT_TRUE(stream.ok() && event.ok());
    constexpr int64_t kBytes = 3'000'001;
    auto a = (*device)->Allocate(kBytes);
    auto b = (*device)->Allocate(kBytes);
    ASSERT_TRUE(a.ok() && b.ok());
    std::string host(kBytes, '\0');
    for (int64_t i = 0; i < kBytes; ++i) host[i] = static_cast<char>(i % 251);
    const std::string original = host;

    Stream& s = **stream;
    ASSERT_TRUE(s.CopyToDevice((*a)->data(), host.data(), kBytes).ok());
    ASSERT_TRUE(s.CopyOnDevice((*b)->data(), (*a)->data(), kBytes).ok());
    ASSERT_TRUE(s.Zero((*a)->data(), kBytes - 1).ok());
    ASSERT_TRUE(s.Record(**event).ok());
    ASSERT_TRUE(s.Wait(**event).ok());
    ASSERT_TRUE((*event)->Synchronize().ok());
    std::string back(kBytes, '\1');
    ASSERT_TRUE(s.CopyToHost(back.data(), (*b)->data(), kBytes).ok());
    ASSERT_TRUE(s.Synchronize().ok());

    EXPECT_TRUE(back == original);
    ASSERT_TRUE(s.CopyToHost(back.data(), (*a)->data(), kBytes).ok());
    ASSERT_TRUE(s.Synchronize().ok());
    EXPECT_TRUE(back == std::string(kBytes - 1, '\0') + original.back());
    EXPECT_EQ(s.CopyToHost(nullptr, (*a)->data(), 1).code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(s.Zero((*a)->data(), -1).code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace lockstep::kernels
