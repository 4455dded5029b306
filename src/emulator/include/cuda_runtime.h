#pragma once

#include <cuda_runtime_api.h>

#include <cstring>
#include <new>
#include <tuple>
#include <type_traits>
#include <utility>

// The C++ part of the CUDA runtime for g++: kernel qualifiers, built-in variables, warp functions
// and cudaLaunchKernelEx. There is no block barrier and no shared memory.

// Lanes of a warp, chosen per target. With 1, warp functions vanish and a kernel's loops are plain
// loops; otherwise each lane is a real thread, so that tests see a missing warp synchronisation.
#ifndef PIPETRAIN_WARP_SIZE
#define PIPETRAIN_WARP_SIZE 1
#endif

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

// ---- types
struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned vx = 1, unsigned vy = 1, unsigned vz = 1) : x(vx), y(vy), z(vz) {}
};

// ---- built-in variables of kernels
extern constinit thread_local uint3 threadIdx;
extern constinit thread_local uint3 blockIdx;
extern constinit thread_local dim3 blockDim;
extern constinit thread_local dim3 gridDim;
static constexpr int warpSize = PIPETRAIN_WARP_SIZE;

// ---- typed allocation
template <class T>
cudaError_t cudaMalloc(T** pointer, size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(pointer), bytes);
}
template <class T>
cudaError_t cudaMallocHost(T** pointer, size_t bytes) {
  return cudaMallocHost(reinterpret_cast<void**>(pointer), bytes);
}
template <class T>
cudaError_t cudaHostAlloc(T** pointer, size_t bytes, unsigned flags) {
  return cudaHostAlloc(reinterpret_cast<void**>(pointer), bytes, flags);
}

// ---- launching
struct cudaLaunchAttribute;  // none is implemented
struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};

namespace emulator {

inline constexpr size_t kKernelBytes = 400;  // of a kernel's arguments and its address

// A kernel and its arguments, and how to copy and to call them.
struct KernelCall {
  const void* data;
  void (*copy)(void* to, const void* from);
  void (*call)(const void* data);
};
cudaError_t launch(const cudaLaunchConfig_t& config, int warp_size, const KernelCall& kernel);

// Exchanges 8 bytes within a warp and returns those of `lane`; a vote. All lanes must take part.
uint64_t exchange(unsigned mask, uint64_t bits, unsigned lane);
unsigned vote(unsigned mask, bool bit);
void synchronise_warp(unsigned mask);

}  // namespace emulator

// Launches kernel(arguments...) on config->stream, which must be one of the current device. Blocks
// run one after another in random order. A block is (warp size, warps); if that is more than one
// thread, each is a real one.
template <class... Parameters, class... Arguments>
static cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config,
                                      void (*kernel)(Parameters...), Arguments&&... arguments) {
  static_assert((!std::is_reference_v<Parameters> && ...), "a kernel takes no references");
  static_assert((std::is_trivially_copy_constructible_v<Parameters> && ...) &&
                    (std::is_trivially_destructible_v<Parameters> && ...),
                "a kernel's parameters are copied as bytes");
  struct Call {
    void (*kernel)(Parameters...);
    std::tuple<Parameters...> arguments;
  };
  static_assert(sizeof(Call) <= emulator::kKernelBytes && alignof(Call) <= 16,
                "a kernel's parameters are too large");
  // The lambda converts each argument implicitly, as a call of the kernel would.
  const Call call = [kernel](Parameters... values) {
    return Call{kernel, std::tuple<Parameters...>(values...)};
  }(std::forward<Arguments>(arguments)...);
  return emulator::launch(
      *config, PIPETRAIN_WARP_SIZE,
      {&call, [](void* to, const void* from) { new (to) Call(*static_cast<const Call*>(from)); },
       [](const void* data) {
         const Call& self = *static_cast<const Call*>(data);
         std::apply(self.kernel, self.arguments);
       }});
}

// ---- warp functions: for whole warps only. As in CUDA, a shuffle orders no memory accesses;
// __syncwarp does.
template <class T>
static inline T __shfl_sync([[maybe_unused]] unsigned mask, T value, [[maybe_unused]] int lane) {
  static_assert(std::is_arithmetic_v<T>);
  if constexpr (PIPETRAIN_WARP_SIZE > 1) {
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    bits = emulator::exchange(mask, bits, unsigned(lane));
    std::memcpy(&value, &bits, sizeof(T));
  }
  return value;
}

template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, [[maybe_unused]] int lane_mask) {
  if constexpr (PIPETRAIN_WARP_SIZE > 1) {
    value = __shfl_sync(mask, value, int(threadIdx.x) ^ lane_mask);
  }
  return value;
}

static inline unsigned __ballot_sync([[maybe_unused]] unsigned mask, int predicate) {
  if constexpr (PIPETRAIN_WARP_SIZE > 1) {
    return emulator::vote(mask, predicate != 0);
  }
  return predicate != 0;
}

static inline void __syncwarp([[maybe_unused]] unsigned mask = 0xffffffff) {
  if constexpr (PIPETRAIN_WARP_SIZE > 1) {
    emulator::synchronise_warp(mask);
  }
}
