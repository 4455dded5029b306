#include "ranks.h"

#include <cuda_runtime.h>

#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>

#include "pipetrain/device/check.h"
#include "pipetrain/device/info.h"

namespace pipetrain {

void run_ranks(int ranks, const std::function<void(Control&)>& body) {
  ThreadGroup group(ranks);
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        select_device(rank % device_count());
        body(group.control(rank));
      } catch (...) {
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

void copy_to_device(std::byte* to, const std::vector<std::byte>& from) {
  check(cudaMemcpy(to, from.data(), from.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

std::vector<std::byte> copy_to_host(const std::byte* from, size_t bytes) {
  std::vector<std::byte> to(bytes);
  check(cudaMemcpy(to.data(), from, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
  return to;
}

std::vector<std::byte> message(int source, int kind, int number, size_t bytes) {
  std::vector<std::byte> data(bytes);
  uint32_t state = uint32_t(source * 7919 + kind * 104729 + number * 1299709 + 1);
  for (std::byte& byte : data) {
    state = state * 1664525u + 1013904223u;
    byte = std::byte(state >> 24);
  }
  return data;
}

}  // namespace pipetrain
