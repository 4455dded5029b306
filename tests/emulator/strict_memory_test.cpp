#ifdef PIPETRAIN_HOST

#include <cuda_bf16.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/emulator/strict_fixture.h"

namespace pipetrain::test {
namespace {

using StrictMemory = Strict;

TEST_F(StrictMemory, NewMemoryIsNaNInEveryType) {
  const char* data = device_memory<char>(1024);
  char host[1024];
  ok(cudaMemcpy(host, data, 1024, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 1024; i += 8) {
    float as_float;
    double as_double;
    __nv_bfloat16 as_bfloat16;
    std::memcpy(&as_float, host + i, sizeof(as_float));
    std::memcpy(&as_double, host + i, sizeof(as_double));
    std::memcpy(&as_bfloat16, host + i, sizeof(as_bfloat16));
    ASSERT_TRUE(std::isnan(as_float));
    ASSERT_TRUE(std::isnan(as_double));
    ASSERT_TRUE(std::isnan(float(as_bfloat16)));
  }
  const float* pinned = pinned_memory<float>(7);
  EXPECT_TRUE(std::isnan(pinned[6]));
}

TEST_F(StrictMemory, TouchedBytesCountWordsThatWereWritten) {
  char* data = device_memory<char>(1003);
  EXPECT_EQ(emulator::touched_bytes(data, 1003), 0u);
  ok(cudaMemset(data + 400, 0xff, 40));
  ok(cudaMemset(data + 1001, 0, 1));
  ok(cudaDeviceSynchronize());
  EXPECT_EQ(emulator::touched_bytes(data, 1003), 40u + 3u);
  emulator::poison(data, 1003);
  EXPECT_EQ(emulator::touched_bytes(data, 1003), 0u);
}

TEST_F(StrictMemory, CountersAreExactToTheRoundedSize) {
  const size_t before = emulator::counters(0).bytes;
  void* a = nullptr;
  void* b = nullptr;
  ok(cudaMalloc(&a, 1));
  ok(cudaMalloc(&b, 513));
  EXPECT_EQ(emulator::counters(0).bytes, before + 256 + 768);
  ok(cudaFree(b));
  ok(cudaFree(a));
  EXPECT_EQ(emulator::counters(0).bytes, before);
  EXPECT_EQ(emulator::counters(0).high_water, before + 256 + 768);
  EXPECT_EQ(emulator::counters(0).allocations, 2);
  emulator::reset_counters(0);
  EXPECT_EQ(emulator::counters(0).high_water, before);
  EXPECT_EQ(emulator::counters(0).allocations, 0);
}

TEST_F(StrictMemory, TheLimitHoldsForEachDeviceAndIsReachedExactly) {
  const size_t used = emulator::counters(0).bytes;
  change_settings([&](emulator::Settings& settings) { settings.memory_bytes = used + 4096; });
  void* more = nullptr;
  expect_refused(cudaMalloc(&more, 4097), cudaErrorMemoryAllocation);
  device_memory<char>(4000);
  size_t available = 1;
  size_t total = 0;
  ok(cudaMemGetInfo(&available, &total));
  EXPECT_EQ(available, 0u);
  EXPECT_EQ(total, used + 4096);
  expect_refused(cudaMalloc(&more, 1), cudaErrorMemoryAllocation);
  ok(cudaSetDevice(1));
  ok(cudaMalloc(&more, 4096));
  ok(cudaFree(more));
  ok(cudaSetDevice(0));
}

TEST_F(StrictMemory, SynchronisationsAndHostCopiesAreCounted) {
  cudaStream_t stream = new_stream();
  cudaEvent_t event = new_event();
  int* data = device_memory<int>(4);
  int* host = pinned_memory<int>(4);
  emulator::reset_counters(0);
  emulator::reset_counters(1);
  ok(cudaMemcpyAsync(data, host, 16, cudaMemcpyHostToDevice, stream));
  ok(cudaMemcpyAsync(data, data + 2, 8, cudaMemcpyDeviceToDevice, stream));
  ok(cudaEventRecord(event, stream));
  ok(cudaStreamWaitEvent(stream, event));
  EXPECT_EQ(emulator::counters(0).synchronisations, 0);
  EXPECT_EQ(emulator::counters(0).host_copies, 1);
  EXPECT_EQ(emulator::counters(0).waits, 1);
  ok(cudaEventSynchronize(event));
  ok(cudaStreamSynchronize(stream));
  ok(cudaDeviceSynchronize());
  ok(cudaMemcpy(host, data, 16, cudaMemcpyDeviceToHost));
  ok(cudaFree(nullptr));
  EXPECT_EQ(emulator::counters(0).synchronisations, 4);
  EXPECT_EQ(emulator::counters(0).host_copies, 2);
  EXPECT_EQ(emulator::counters(1).synchronisations, 0);
}

TEST_F(StrictMemory, FreeingWaitsForTheDevice) {
  cudaStream_t stream = new_stream();
  char* data = device_memory<char>(256);
  void* other = nullptr;
  ok(cudaMalloc(&other, 256));
  for (int i = 0; i < 500; ++i) {
    ok(cudaMemsetAsync(data, i, 256, stream));
  }
  emulator::reset_counters(0);
  ok(cudaFree(other));
  EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess);
  EXPECT_EQ(emulator::counters(0).synchronisations, 1);
}

TEST_F(StrictMemory, ACopyMustFitItsKind) {
  int* device = device_memory<int>(8);
  int* pinned = pinned_memory<int>(8);
  int pageable[8] = {};
  cudaStream_t stream = new_stream();
  expect_refused(cudaMemcpy(pinned, pageable, 32, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  expect_refused(cudaMemcpy(device, pageable, 32, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  expect_refused(cudaMemcpy(device, device, 32, cudaMemcpyHostToHost), cudaErrorInvalidValue);
  expect_refused(cudaMemcpy(device, pageable, 32, cudaMemcpyKind(4)),
                 cudaErrorInvalidMemcpyDirection);
  expect_refused(cudaMemcpyAsync(pinned, pinned, 32, cudaMemcpyDeviceToHost, stream),
                 cudaErrorInvalidValue);
  expect_refused(cudaMemcpyAsync(device, pinned, 32, cudaMemcpyDeviceToDevice, stream),
                 cudaErrorInvalidValue);
  expect_refused(cudaMemset(pinned, 0, 32), cudaErrorInvalidValue);
}

TEST_F(StrictMemory, ACopyMustLieInOneAllocation) {
  int* device = device_memory<int>(8);
  int* pinned = pinned_memory<int>(16);
  cudaStream_t stream = new_stream();
  expect_refused(cudaMemcpyAsync(device, pinned, 33, cudaMemcpyHostToDevice, stream),
                 cudaErrorInvalidValue);
  expect_refused(cudaMemcpyAsync(device + 1, pinned, 32, cudaMemcpyHostToDevice, stream),
                 cudaErrorInvalidValue);
  expect_refused(cudaMemsetAsync(device + 7, 0, 5, stream), cudaErrorInvalidValue);
  ok(cudaMemcpyAsync(device + 7, pinned + 15, 4, cudaMemcpyHostToDevice, stream));
}

TEST_F(StrictMemory, AnAsynchronousCopyNeedsPinnedMemory) {
  int* device = device_memory<int>(8);
  int pageable[8] = {};
  cudaStream_t stream = new_stream();
  expect_refused(cudaMemcpyAsync(device, pageable, 32, cudaMemcpyHostToDevice, stream),
                 cudaErrorInvalidValue);
  expect_refused(cudaMemcpyAsync(pageable, device, 32, cudaMemcpyDeviceToHost, stream),
                 cudaErrorInvalidValue);
}

TEST_F(StrictMemory, AnotherDevicesMemoryIsRefused) {
  int* device = device_memory<int>(8);
  ok(cudaSetDevice(1));
  expect_refused(cudaMemset(device, 0, 32), cudaErrorInvalidValue);
  ok(cudaSetDevice(0));
}

// CUDA's cudaMemcpy from pageable memory may return before the device memory is written, and
// streams do not wait for it: a program that relies on it must not pass here.
TEST_F(StrictMemory, APageableCopyIsNotOrderedBeforeAStream) {
  if (races_are_reported) {
    GTEST_SKIP() << "races on purpose";
  }
  change_settings([](emulator::Settings& settings) {
    settings.delay_seed = 1;
    settings.max_delay_us = 2000;
  });
  const size_t count = 1000;
  int* device = device_memory<int>(count);
  int* host = pinned_memory<int>(count);
  cudaStream_t stream = new_stream();
  int stale = 0;
  for (int round = 1; round <= 50; ++round) {
    const std::vector<int> data(count, round);
    ok(cudaMemcpy(device, data.data(), count * sizeof(int), cudaMemcpyHostToDevice));
    ok(cudaMemcpyAsync(host, device, count * sizeof(int), cudaMemcpyDeviceToHost, stream));
    ok(cudaStreamSynchronize(stream));
    stale += host[count - 1] != round;
    ok(cudaDeviceSynchronize());
  }
  EXPECT_GT(stale, 0);
}

TEST_F(StrictMemory, OnlyWhatWasAllocatedCanBeFreedAndOnce) {
  int on_stack = 0;
  expect_refused(cudaFree(&on_stack), cudaErrorInvalidValue);
  expect_refused(cudaFreeHost(&on_stack), cudaErrorInvalidValue);
  char* device = device_memory<char>(512);
  expect_refused(cudaFree(device + 256), cudaErrorInvalidValue);
  expect_refused(cudaFreeHost(device), cudaErrorInvalidValue);
  void* twice = nullptr;
  ok(cudaMalloc(&twice, 512));
  ok(cudaFree(twice));
  expect_refused(cudaFree(twice), cudaErrorInvalidValue);
}

TEST_F(StrictMemory, Bfloat16RoundsToNearestEvenAndKeepsNaN) {
  const auto bits = [](float value) { return __nv_bfloat16_raw(__float2bfloat16(value)).x; };
  EXPECT_EQ(bits(1.0f), 0x3f80);
  EXPECT_EQ(bits(1.00390625f), 0x3f80);  // halfway: to even, down
  EXPECT_EQ(bits(1.01171875f), 0x3f82);  // halfway: to even, up
  EXPECT_EQ(bits(1.00390637f), 0x3f81);  // just above halfway
  EXPECT_EQ(bits(3.4e38f), 0x7f80);      // rounds to infinity
  EXPECT_EQ(bits(-INFINITY), 0xff80);
  EXPECT_EQ(bits(std::numeric_limits<float>::quiet_NaN()), 0x7fff);
  EXPECT_EQ(bits(std::bit_cast<float>(0x7f800001u)), 0x7fff);  // would round to infinity
  EXPECT_EQ(bits(-0.0f), 0x8000);
  for (unsigned value = 0; value < 0x10000; ++value) {
    const float wide = __bfloat162float(__nv_bfloat16_raw{static_cast<unsigned short>(value)});
    if (!std::isnan(wide)) {
      ASSERT_EQ(bits(wide), value);
    }
  }
}

}  // namespace
}  // namespace pipetrain::test

#endif
