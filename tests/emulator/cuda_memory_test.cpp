#include <cstdint>
#include <numeric>
#include <vector>

#include "tests/emulator/cuda_fixture.h"

// Documented behaviour of CUDA: these tests also hold on a GPU.
namespace pipetrain::test {
namespace {

using CudaMemory = Cuda;

TEST_F(CudaMemory, EveryAllocationIsAlignedTo256Bytes) {
  for (size_t bytes : {1, 3, 255, 257, 1000}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(device_memory<char>(bytes)) % 256, 0u) << bytes;
  }
}

TEST_F(CudaMemory, DataComesBackThroughTwoDeviceBuffers) {
  const size_t count = 100003;  // more than the 64 KiB that may be staged
  std::vector<int> data(count);
  std::iota(data.begin(), data.end(), 7);
  int* a = device_memory<int>(count);
  int* b = device_memory<int>(count);
  std::vector<int> back(count);
  ok(cudaMemcpy(a, data.data(), count * sizeof(int), cudaMemcpyHostToDevice));
  ok(cudaMemcpy(b, a, count * sizeof(int), cudaMemcpyDeviceToDevice));
  ok(cudaMemcpy(back.data(), b, count * sizeof(int), cudaMemcpyDeviceToHost));
  EXPECT_EQ(back, data);
}

TEST_F(CudaMemory, ThePageableSourceMayBeReusedWhenTheCopyReturns) {
  const size_t count = 50000;
  int* a = device_memory<int>(count);
  std::vector<int> data(count, 1);
  ok(cudaMemcpy(a, data.data(), count * sizeof(int), cudaMemcpyHostToDevice));
  data.assign(count, 2);
  std::vector<int> back(count);
  ok(cudaMemcpy(back.data(), a, count * sizeof(int), cudaMemcpyDeviceToHost));
  EXPECT_EQ(back, std::vector<int>(count, 1));
}

TEST_F(CudaMemory, FillAndCopyOfTheDefaultStreamAreInOrder) {
  unsigned char* a = device_memory<unsigned char>(5000);
  ok(cudaMemset(a, 1, 5000));
  ok(cudaMemset(a + 100, 2, 50));
  std::vector<unsigned char> back(5000);
  ok(cudaMemcpy(back.data(), a, 5000, cudaMemcpyDeviceToHost));
  std::vector<unsigned char> expected(5000, 1);
  std::fill_n(expected.begin() + 100, 50, 2);
  EXPECT_EQ(back, expected);
}

TEST_F(CudaMemory, AStreamSeesACopyAfterTheDeviceWasSynchronised) {
  std::vector<int> data(1000, 5);
  int* a = device_memory<int>(1000);
  int* host = pinned_memory<int>(1000);
  cudaStream_t stream = new_stream();
  ok(cudaMemcpy(a, data.data(), 4000, cudaMemcpyHostToDevice));
  ok(cudaDeviceSynchronize());
  ok(cudaMemcpyAsync(host, a, 4000, cudaMemcpyDeviceToHost, stream));
  ok(cudaStreamSynchronize(stream));
  EXPECT_EQ(std::vector<int>(host, host + 1000), data);
}

TEST_F(CudaMemory, HostToHostCopies) {
  const std::vector<int> data = {1, 2, 3};
  std::vector<int> copy(3);
  ok(cudaMemcpy(copy.data(), data.data(), 12, cudaMemcpyHostToHost));
  EXPECT_EQ(copy, data);
}

TEST_F(CudaMemory, AllocatingLowersWhatIsAvailable) {
  size_t before = 0;
  size_t after = 0;
  size_t total = 0;
  ok(cudaMemGetInfo(&before, &total));
  device_memory<char>(64 << 20);
  ok(cudaMemGetInfo(&after, &total));
  EXPECT_LE(after + (64 << 20), before);
}

TEST_F(CudaMemory, OutOfMemoryIsReportedAndHarmless) {
  size_t available = 0;
  size_t total = 0;
  ok(cudaMemGetInfo(&available, &total));
  void* pointer = nullptr;
  EXPECT_EQ(cudaMalloc(&pointer, total + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  device_memory<char>(1000);
}

TEST_F(CudaMemory, NothingIsAValidThingToFreeCopyOrFill) {
  ok(cudaFree(nullptr));
  ok(cudaFreeHost(nullptr));
  cudaStream_t stream = new_stream();
  char* a = device_memory<char>(1);
  char* host = pinned_memory<char>(1);
  ok(cudaMemcpyAsync(a, host, 0, cudaMemcpyHostToDevice, stream));
  ok(cudaMemsetAsync(a, 0, 0, stream));
}

}  // namespace
}  // namespace pipetrain::test
