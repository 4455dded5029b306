#include "emulator/memory.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "emulator/device.h"

// Allocation, and what is known of an address. Copies are in copies.cpp.
namespace emulator {
namespace {

constexpr size_t kAlignment = 256;
// Each half is a NaN in bf16, the whole in fp32, two in fp64; it is no likely integer, and not the
// NaN that arithmetic makes.
constexpr uint32_t kPoison = 0xfff9fff9u;
constexpr std::array<uint32_t, 1024> kPoisonPage = [] {
  std::array<uint32_t, 1024> page{};
  page.fill(kPoison);
  return page;
}();

struct Allocation {
  size_t bytes;
  Place place;
  int device;
};

// All allocations of the process, by address. Used by submitting threads only.
struct Registry {
  std::mutex mutex;
  std::map<uintptr_t, Allocation> allocations;
};

Registry& registry() {
  static Registry& the_registry = *new Registry;
  return the_registry;
}

size_t rounded(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Poisoned memory that locate() knows, or null if the host has none.
void* allocate(size_t bytes, Place place, int device) {
  void* pointer = nullptr;
  if (posix_memalign(&pointer, kAlignment, bytes) != 0) {
    return nullptr;
  }
  poison(pointer, bytes);
  const std::lock_guard lock(registry().mutex);
  registry().allocations.emplace(reinterpret_cast<uintptr_t>(pointer),
                                 Allocation{bytes, place, device});
  return pointer;
}

// What was allocated at exactly this address, or zero bytes.
Allocation find(const void* pointer, Place place) {
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().allocations.find(reinterpret_cast<uintptr_t>(pointer));
  const bool fits = found != registry().allocations.end() && found->second.place == place;
  return fits ? found->second : Allocation{0, place, -1};
}

void release(void* pointer, size_t bytes) {
  {
    const std::lock_guard lock(registry().mutex);
    registry().allocations.erase(reinterpret_cast<uintptr_t>(pointer));
  }
  poison(pointer, bytes);
  std::free(pointer);
}

}  // namespace

Location locate(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const std::lock_guard lock(registry().mutex);
  auto after = registry().allocations.upper_bound(address);
  if (after == registry().allocations.begin()) {
    return {};
  }
  const auto& [start, allocation] = *std::prev(after);
  if (address - start >= allocation.bytes) {
    return {};
  }
  return {allocation.place, allocation.device, allocation.bytes - (address - start)};
}

bool is_device_memory(int device, const void* pointer, size_t bytes) {
  const Location location = locate(pointer);
  return location.place == Place::device && location.device == device && location.bytes >= bytes;
}

void poison(void* pointer, size_t bytes) {
  auto* data = static_cast<char*>(pointer);
  for (size_t i = 0; i < bytes; i += sizeof(kPoisonPage)) {
    std::memcpy(data + i, kPoisonPage.data(), std::min(sizeof(kPoisonPage), bytes - i));
  }
}

size_t touched_bytes(const void* pointer, size_t bytes) {
  const auto* data = static_cast<const char*>(pointer);
  size_t touched = 0;
  for (size_t page = 0; page < bytes; page += sizeof(kPoisonPage)) {
    const size_t size = std::min(sizeof(kPoisonPage), bytes - page);
    if (std::memcmp(data + page, kPoisonPage.data(), size) == 0) {
      continue;
    }
    for (size_t i = 0; i < size; i += sizeof(kPoison)) {
      const size_t word = std::min(sizeof(kPoison), size - i);
      touched += std::memcmp(data + page + i, &kPoison, word) != 0 ? word : 0;
    }
  }
  return touched;
}

}  // namespace emulator

using emulator::Device;
using emulator::failure;
using emulator::Place;
using emulator::refuse;

cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
  Device& device = emulator::this_device();
  const std::lock_guard lock(device.mutex);
  *total = emulator::memory_limit();
  *available = *total - std::min(*total, device.bytes);
  return failure(device.number);
}

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  Device& device = emulator::this_device();
  if (const cudaError_t error = failure(device.number); error != cudaSuccess) {
    return error;
  }
  *pointer = nullptr;
  if (bytes == 0) {
    return cudaSuccess;
  }
  const std::lock_guard lock(device.mutex);
  const size_t limit = emulator::memory_limit();
  if (bytes > limit || device.bytes + emulator::rounded(bytes) > limit) {
    return emulator::remember(cudaErrorMemoryAllocation);
  }
  *pointer = emulator::allocate(bytes, Place::device, device.number);
  if (*pointer == nullptr) {
    return emulator::remember(cudaErrorMemoryAllocation);
  }
  device.bytes += emulator::rounded(bytes);
  device.high_water = std::max(device.high_water, device.bytes);
  device.allocations.fetch_add(1, std::memory_order_relaxed);
  return cudaSuccess;
}

cudaError_t cudaFree(void* pointer) {
  if (pointer == nullptr) {
    return cudaSuccess;
  }
  const emulator::Allocation allocation = emulator::find(pointer, Place::device);
  if (allocation.bytes == 0) {
    return refuse(cudaErrorInvalidValue, "cudaFree: the pointer is not from cudaMalloc, or freed");
  }
  Device& device = *emulator::find_device(allocation.device);
  emulator::wait_for_device(device);
  emulator::release(pointer, allocation.bytes);
  const std::lock_guard lock(device.mutex);
  device.bytes -= emulator::rounded(allocation.bytes);
  return failure(device.number);
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  Device& device = emulator::this_device();
  if (const cudaError_t error = failure(device.number); error != cudaSuccess) {
    return error;
  }
  *pointer = nullptr;
  if (bytes == 0) {
    return cudaSuccess;
  }
  *pointer = emulator::allocate(bytes, Place::pinned, -1);
  device.allocations.fetch_add(1, std::memory_order_relaxed);
  return *pointer != nullptr ? cudaSuccess : emulator::remember(cudaErrorMemoryAllocation);
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned flags) {
  if (flags != cudaHostAllocDefault) {
    return refuse(cudaErrorInvalidValue,
                  fmt::format("cudaHostAlloc: flags {} are not implemented", flags));
  }
  return cudaMallocHost(pointer, bytes);
}

cudaError_t cudaFreeHost(void* pointer) {
  if (pointer == nullptr) {
    return cudaSuccess;
  }
  const emulator::Allocation allocation = emulator::find(pointer, Place::pinned);
  if (allocation.bytes == 0) {
    return refuse(cudaErrorInvalidValue,
                  "cudaFreeHost: the pointer is not from cudaMallocHost, or freed");
  }
  Device& device = emulator::this_device();
  emulator::wait_for_device(device);
  emulator::release(pointer, allocation.bytes);
  return failure(device.number);
}
