#pragma once

#include <cuda_runtime.h>

#include <cstdio>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "pipetrain/comm/control.h"

namespace pipetrain::test {

// Runs `body` once per rank, each on a thread and a device of its own, and rethrows the first
// exception.
inline void run_ranks(int ranks, const std::function<void(Control&)>& body) {
  ThreadGroup group(ranks);
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> failures(static_cast<size_t>(ranks));
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
        failures[static_cast<size_t>(rank)] = std::current_exception();
        group.abort();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) {
      std::rethrow_exception(failure);
    }
  }
}

}  // namespace pipetrain::test
