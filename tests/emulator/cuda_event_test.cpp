#include <vector>

#include "tests/emulator/cuda_fixture.h"

// Documented behaviour of CUDA: these tests also hold on a GPU.
namespace pipetrain::test {
namespace {

using CudaEvent = Cuda;

// A value goes round three streams, each of which adds its own byte behind it; every hand-over
// depends on one event.
TEST_F(CudaEvent, WaitsOrderAChainOfStreams) {
  constexpr int rounds = 200;
  constexpr size_t bytes = 4096;
  const cudaStream_t streams[3] = {new_stream(), new_stream(), new_stream()};
  const cudaEvent_t done[3] = {new_event(), new_event(), new_event()};
  char* buffers[3];
  for (char*& buffer : buffers) {
    buffer = device_memory<char>(bytes);
  }
  char* seen = pinned_memory<char>(rounds);
  for (int round = 0; round < rounds; ++round) {
    if (round > 0) {
      ok(cudaStreamWaitEvent(streams[0], done[2]));
    }
    ok(cudaMemsetAsync(buffers[0], round % 100, bytes, streams[0]));
    ok(cudaEventRecord(done[0], streams[0]));
    for (int i = 1; i < 3; ++i) {
      ok(cudaStreamWaitEvent(streams[i], done[i - 1]));
      ok(cudaMemcpyAsync(buffers[i], buffers[i - 1], bytes, cudaMemcpyDeviceToDevice, streams[i]));
      ok(cudaEventRecord(done[i], streams[i]));
    }
    ok(cudaMemcpyAsync(seen + round, buffers[2] + bytes - 1, 1, cudaMemcpyDeviceToHost,
                       streams[2]));
  }
  ok(cudaDeviceSynchronize());
  for (int round = 0; round < rounds; ++round) {
    ASSERT_EQ(seen[round], round % 100) << round;
  }
}

TEST_F(CudaEvent, AnEventThatWasNeverRecordedIsDone) {
  cudaEvent_t event = new_event();
  ok(cudaEventQuery(event));
  ok(cudaEventSynchronize(event));
}

TEST_F(CudaEvent, SynchronisingWaitsForTheLastRecord) {
  const size_t bytes = 1 << 22;
  cudaStream_t stream = new_stream();
  cudaEvent_t event = new_event(cudaEventDisableTiming | cudaEventBlockingSync);
  char* data = device_memory<char>(bytes);
  char* host = pinned_memory<char>(bytes);
  for (int i = 0; i < 20; ++i) {
    ok(cudaMemsetAsync(data, i, bytes, stream));
    ok(cudaMemcpyAsync(host, data, bytes, cudaMemcpyDeviceToHost, stream));
    ok(cudaEventRecord(event, stream));
  }
  ok(cudaEventSynchronize(event));
  EXPECT_EQ(host[0], 19);
  EXPECT_EQ(host[bytes - 1], 19);
  ok(cudaEventQuery(event));
}

TEST_F(CudaEvent, TimesGrowAlongAStream) {
  cudaStream_t stream = new_stream();
  std::vector<cudaEvent_t> events;
  char* data = device_memory<char>(1 << 24);
  for (int i = 0; i < 4; ++i) {
    ok(cudaEventRecord(events.emplace_back(new_event(cudaEventDefault)), stream));
    ok(cudaMemsetAsync(data, i, 1 << 24, stream));
  }
  ok(cudaStreamSynchronize(stream));
  float whole = 0;
  ok(cudaEventElapsedTime(&whole, events[0], events[3]));
  float sum = 0;
  for (size_t i = 0; i < 3; ++i) {
    float part = 0;
    ok(cudaEventElapsedTime(&part, events[i], events[i + 1]));
    EXPECT_GT(part, 0);
    sum += part;
  }
  EXPECT_NEAR(whole, sum, 0.01f + 0.01f * whole);
}

TEST_F(CudaEvent, TimesNeedTimingAndARecord) {
  cudaStream_t stream = new_stream();
  cudaEvent_t timed = new_event(cudaEventDefault);
  cudaEvent_t untimed = new_event();
  ok(cudaEventRecord(timed, stream));
  ok(cudaEventRecord(untimed, stream));
  ok(cudaStreamSynchronize(stream));
  float time = 0;
  EXPECT_EQ(cudaEventElapsedTime(&time, timed, untimed), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventElapsedTime(&time, new_event(cudaEventDefault), timed),
            cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
}

TEST_F(CudaEvent, AnEventMayBeDestroyedWhileAStreamWaitsForIt) {
  const size_t bytes = 1 << 22;
  cudaStream_t writer = new_stream();
  cudaStream_t reader = new_stream();
  char* data = device_memory<char>(bytes);
  char* host = pinned_memory<char>(bytes);
  for (int i = 0; i < 20; ++i) {
    cudaEvent_t event = nullptr;
    ok(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    ok(cudaMemsetAsync(data, i, bytes, writer));
    ok(cudaEventRecord(event, writer));
    ok(cudaStreamWaitEvent(reader, event));
    ok(cudaEventDestroy(event));
    ok(cudaMemcpyAsync(host, data, bytes, cudaMemcpyDeviceToHost, reader));
    ok(cudaStreamSynchronize(reader));
    ASSERT_EQ(host[bytes - 1], i);
  }
}

TEST_F(CudaEvent, AWaitIsForTheRecordBeforeItNotForALaterOne) {
  cudaStream_t stream = new_stream();
  cudaStream_t other = new_stream();
  cudaEvent_t event = new_event();
  cudaEvent_t last = new_event();
  ok(cudaEventRecord(event, stream));
  ok(cudaStreamWaitEvent(other, event));
  ok(cudaEventRecord(last, other));
  ok(cudaStreamWaitEvent(stream, last));  // would be a circle if `other` waited for what follows
  ok(cudaEventRecord(event, stream));
  ok(cudaStreamSynchronize(other));
  ok(cudaStreamSynchronize(stream));
}

}  // namespace
}  // namespace pipetrain::test
