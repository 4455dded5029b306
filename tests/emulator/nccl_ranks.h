#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <chrono>
#include <functional>
#include <source_location>
#include <string>
#include <thread>
#include <vector>

#include "cuda_fixture.h"

namespace pipetrain::test {

inline void ok(ncclResult_t result,
               const std::source_location& where = std::source_location::current()) {
  EXPECT_EQ(result, ncclSuccess) << ncclGetErrorString(result) << " (" << ncclGetLastError(nullptr)
                                 << ") at " << where.file_name() << ":" << where.line();
}

// One rank of a communicator with a stream and memory of its own.
class Rank {
 public:
  Rank(int rank, int ranks, int device, const ncclUniqueId& id, ncclConfig_t* config = nullptr)
      : rank_(rank), ranks_(ranks) {
    ok(cudaSetDevice(device));
    stream_ = new_stream();
    ok(ncclCommInitRankConfig(&comm_, ranks, id, rank, config));
  }
  ~Rank() {
    for (cudaStream_t stream : streams_) {
      cudaStreamSynchronize(stream);
    }
    if (comm_ != nullptr) {
      ok(ncclCommDestroy(comm_));
    }
    for (cudaStream_t stream : streams_) {
      cudaStreamDestroy(stream);
    }
    for (void* pointer : memory_) {
      cudaFree(pointer);
    }
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  int next() const { return (rank_ + 1) % ranks_; }
  int previous() const { return (rank_ + ranks_ - 1) % ranks_; }
  ncclComm_t comm() const { return comm_; }
  cudaStream_t stream() const { return stream_; }

  cudaStream_t new_stream() {
    cudaStream_t stream = nullptr;
    ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    streams_.push_back(stream);
    return stream;
  }
  template <class T>
  T* memory(size_t count) {
    T* pointer = nullptr;
    ok(cudaMalloc(&pointer, count * sizeof(T)));
    memory_.push_back(pointer);
    return pointer;
  }
  template <class T>
  T* on_device(const std::vector<T>& values) {
    T* pointer = memory<T>(values.size());
    ok(cudaMemcpy(pointer, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    ok(cudaDeviceSynchronize());
    return pointer;
  }
  // After all work of the rank's first stream.
  template <class T>
  std::vector<T> on_host(const T* pointer, size_t count) {
    ok(cudaStreamSynchronize(stream_));
    std::vector<T> values(count);
    ok(cudaMemcpy(values.data(), pointer, count * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }
  // Waits for the first stream with a deadline, so that a hang fails instead of stopping the run.
  bool finishes(std::chrono::milliseconds most) {
    const auto end = std::chrono::steady_clock::now() + most;
    while (cudaStreamQuery(stream_) == cudaErrorNotReady) {
      if (std::chrono::steady_clock::now() > end) {
        return false;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

 private:
  int rank_;
  int ranks_;
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  std::vector<cudaStream_t> streams_;
  std::vector<void*> memory_;
};

// Runs the body once per rank in processes of their own, which start the test program again with
// this test alone, and fails where one of them does. Must be all that a test does. Where ranks
// share a device they get host names of their own for NCCL and talk over sockets.
void in_processes(int ranks, const std::function<void(Rank&)>& body);

// Runs the body once per rank in threads of this process, rank r on device r.
void in_threads(int ranks, const std::function<void(Rank&)>& body);

}  // namespace pipetrain::test
