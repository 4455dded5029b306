#include "ranks.h"

#include <cuda_runtime.h>

#include <cstdint>

#include "pipetrain/device/check.h"

namespace pipetrain {

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
