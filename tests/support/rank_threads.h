#pragma once

#include <cuda_runtime.h>

#include <cstdio>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "pipetrain/comm/control.h"

namespace pipetrain::test {

// Runs `body` once per rank, each on a thread and a device of its own (devices repeat when there
// are fewer). When one throws, the group is aborted and the first exception in time is thrown
// again.
inline void run_ranks(int ranks, const std::function<void(Control&)>& body) {
  ThreadGroup group(ranks);
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::exception_ptr first;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        int devices = 1;
        cudaGetDeviceCount(&devices);
        cudaSetDevice(rank % devices);
        body(group.control(rank));
      } catch (const std::exception& failure) {
        // Said at once: the other ranks may now wait for this one until the test is killed.
        std::fprintf(stderr, "rank %d: %s\n", rank, failure.what());
        const std::lock_guard lock(mutex);
        if (!first) {
          first = std::current_exception();
        }
        group.abort();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (first) {
    std::rethrow_exception(first);
  }
}

}  // namespace pipetrain::test
