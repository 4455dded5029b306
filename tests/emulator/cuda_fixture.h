#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <source_location>
#include <vector>

namespace pipetrain::test {

inline void ok(cudaError_t error,
               const std::source_location& where = std::source_location::current()) {
  EXPECT_EQ(error, cudaSuccess) << cudaGetErrorName(error) << " at " << where.file_name() << ":"
                                << where.line();
}

// Skips where there is no device; gives streams, events and memory that end with the test.
class Cuda : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      GTEST_SKIP() << "there is no device";
    }
    ok(cudaSetDevice(0));
  }

  void TearDown() override {
    cudaDeviceSynchronize();
    for (cudaStream_t stream : streams_) {
      ok(cudaStreamDestroy(stream));
    }
    for (cudaEvent_t event : events_) {
      ok(cudaEventDestroy(event));
    }
    for (void* pointer : device_memory_) {
      ok(cudaFree(pointer));
    }
    for (void* pointer : pinned_memory_) {
      ok(cudaFreeHost(pointer));
    }
  }

  cudaStream_t new_stream() {
    cudaStream_t stream = nullptr;
    ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return streams_.emplace_back(stream);
  }
  cudaEvent_t new_event(unsigned flags = cudaEventDisableTiming) {
    cudaEvent_t event = nullptr;
    ok(cudaEventCreateWithFlags(&event, flags));
    return events_.emplace_back(event);
  }
  template <class T>
  T* device_memory(size_t count) {
    T* pointer = nullptr;
    ok(cudaMalloc(&pointer, count * sizeof(T)));
    device_memory_.push_back(pointer);
    return pointer;
  }
  template <class T>
  T* pinned_memory(size_t count) {
    T* pointer = nullptr;
    ok(cudaMallocHost(&pointer, count * sizeof(T)));
    pinned_memory_.push_back(pointer);
    return pointer;
  }

 private:
  std::vector<cudaStream_t> streams_;
  std::vector<cudaEvent_t> events_;
  std::vector<void*> device_memory_;
  std::vector<void*> pinned_memory_;
};

}  // namespace pipetrain::test
