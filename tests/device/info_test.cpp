#include "pipetrain/device/info.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <string>

#include "pipetrain/device/check.h"
#include "pipetrain/error.h"

namespace pipetrain {
namespace {

TEST(Device, EveryDeviceIsDescribed) {
  ASSERT_GT(device_count(), 0);
  EXPECT_EQ(device_problem(), "");
  for (int i = 0; i < device_count(); ++i) {
    const DeviceInfo info = device_info(i);
    EXPECT_FALSE(info.name.empty());
    EXPECT_GT(info.memory, 0u);
    EXPECT_GT(info.multiprocessors, 0);
    for (int j = 0; j < i; ++j) {
      EXPECT_NE(info.bus_id, device_info(j).bus_id);
    }
  }
}

TEST(Device, SelectingChangesTheCurrentDevice) {
  const int last = device_count() - 1;
  select_device(last);
  int current = -1;
  check(cudaGetDevice(&current), "cudaGetDevice");
  EXPECT_EQ(current, last);
  select_device(0);
}

TEST(Device, OneThatDoesNotExistIsAUsageError) {
  EXPECT_THROW(select_device(-1), UsageError);
  try {
    select_device(device_count());
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("there are " + std::to_string(device_count())),
              std::string::npos)
        << error.what();
  }
}

TEST(Device, ErrorsNameTheCallTheReasonAndTheLine) {
  try {
    check(cudaErrorInvalidValue, "cudaSomething");
    FAIL();
  } catch (const InternalError& error) {
    const std::string message = error.what();
    for (const char* part : {"cudaSomething", "cudaErrorInvalidValue", "info_test.cpp:"}) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
    }
  }
  EXPECT_THROW(check(cudaErrorMemoryAllocation, "cudaMalloc"), DoesNotFit);
  EXPECT_NO_THROW(check(cudaSuccess, "cudaMalloc"));
}

// Fault 44 (FLOPs of an unknown device or with sparsity): dense, never with sparsity; unknown
// devices have none, so that nothing is computed from a guess.
TEST(Device, PeakIsDenseAndUnknownDevicesHaveNone) {
  EXPECT_EQ(dense_bf16_peak_flops("NVIDIA H100 80GB HBM3"), 989e12);
  EXPECT_EQ(dense_bf16_peak_flops("NVIDIA H100 PCIe"), 756e12);
  EXPECT_EQ(dense_bf16_peak_flops("NVIDIA H200"), 989e12);
  EXPECT_EQ(dense_bf16_peak_flops("NVIDIA A100-SXM4-40GB"), 312e12);
  EXPECT_EQ(dense_bf16_peak_flops("NVIDIA A100 80GB PCIe"), 312e12);
  EXPECT_EQ(dense_bf16_peak_flops("NVIDIA RTX A1000"), 0);
  EXPECT_EQ(dense_bf16_peak_flops("NVIDIA H20"), 0);
  EXPECT_EQ(dense_bf16_peak_flops(""), 0);
}

#ifdef PIPETRAIN_HOST
TEST(Device, TheEmulatorHasNoPeak) {
  const DeviceInfo info = device_info(0);
  EXPECT_TRUE(info.emulated);
  EXPECT_EQ(dense_bf16_peak_flops(info.name), 0);
}
#endif

}  // namespace
}  // namespace pipetrain
