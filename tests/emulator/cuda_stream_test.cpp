#include <thread>
#include <vector>

#include "tests/emulator/cuda_fixture.h"

// Documented behaviour of CUDA: these tests also hold on a GPU.
namespace pipetrain::test {
namespace {

using CudaStream = Cuda;

TEST_F(CudaStream, ThousandsOfQueuedOperationsRunInOrder) {
  constexpr int count = 5000;
  cudaStream_t stream = new_stream();
  char* cell = device_memory<char>(1);
  char* seen = pinned_memory<char>(count);
  for (int i = 0; i < count; ++i) {
    ok(cudaMemsetAsync(cell, i % 100, 1, stream));
    ok(cudaMemcpyAsync(seen + i, cell, 1, cudaMemcpyDeviceToHost, stream));
  }
  ok(cudaStreamSynchronize(stream));
  for (int i = 0; i < count; ++i) {
    ASSERT_EQ(seen[i], i % 100) << i;
  }
}

TEST_F(CudaStream, QueryTellsWhenAllWorkIsDone) {
  cudaStream_t stream = new_stream();
  ok(cudaStreamQuery(stream));
  char* data = device_memory<char>(1 << 24);
  for (int i = 0; i < 20; ++i) {
    ok(cudaMemsetAsync(data, i, 1 << 24, stream));
  }
  const cudaError_t state = cudaStreamQuery(stream);
  EXPECT_TRUE(state == cudaSuccess || state == cudaErrorNotReady);
  cudaGetLastError();  // "not ready" counts as one
  ok(cudaStreamSynchronize(stream));
  ok(cudaStreamQuery(stream));
  ok(cudaGetLastError());
}

TEST_F(CudaStream, TheGreatestPriorityIsTheLowestNumber) {
  int least = -1;
  int greatest = 1;
  ok(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  EXPECT_LE(greatest, least);
  cudaStream_t stream = nullptr;
  ok(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
  ok(cudaStreamDestroy(stream));
}

TEST_F(CudaStream, WorkOfADestroyedStreamIsStillDone) {
  const size_t bytes = 1 << 22;
  char* data = device_memory<char>(bytes);
  char* host = pinned_memory<char>(bytes);
  cudaStream_t stream = nullptr;
  ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (int i = 1; i <= 10; ++i) {
    ok(cudaMemsetAsync(data, i, bytes, stream));
  }
  ok(cudaMemcpyAsync(host, data, bytes, cudaMemcpyDeviceToHost, stream));
  ok(cudaStreamDestroy(stream));
  ok(cudaDeviceSynchronize());
  EXPECT_EQ(host[0], 10);
  EXPECT_EQ(host[bytes - 1], 10);
}

TEST_F(CudaStream, ManyStreamsComeAndGo) {
  char* data = device_memory<char>(256);
  for (int i = 0; i < 300; ++i) {
    cudaStream_t stream = nullptr;
    ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    ok(cudaMemsetAsync(data, i % 100, 256, stream));
    ok(cudaStreamSynchronize(stream));
    ok(cudaStreamDestroy(stream));
  }
  char last = 0;
  ok(cudaMemcpy(&last, data + 255, 1, cudaMemcpyDeviceToHost));
  EXPECT_EQ(last, 99);
}

TEST_F(CudaStream, SeveralThreadsMayUseTheirOwnStreamsAtOnce) {
  constexpr int threads = 4;
  constexpr int rounds = 300;
  char* data = device_memory<char>(threads * 256);
  char* seen = pinned_memory<char>(threads * rounds);
  std::vector<std::thread> hosts;
  for (int t = 0; t < threads; ++t) {
    cudaStream_t stream = new_stream();
    hosts.emplace_back([=] {
      ok(cudaSetDevice(0));
      for (int i = 0; i < rounds; ++i) {
        ok(cudaMemsetAsync(data + t * 256, (i + t) % 100, 256, stream));
        ok(cudaMemcpyAsync(seen + t * rounds + i, data + t * 256 + 255, 1, cudaMemcpyDeviceToHost,
                           stream));
      }
      ok(cudaStreamSynchronize(stream));
    });
  }
  for (std::thread& host : hosts) {
    host.join();
  }
  for (int t = 0; t < threads; ++t) {
    for (int i = 0; i < rounds; ++i) {
      ASSERT_EQ(seen[t * rounds + i], (i + t) % 100);
    }
  }
}

}  // namespace
}  // namespace pipetrain::test
