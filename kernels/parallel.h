#pragma once

// The one loop shape of all kernels, for both devices. Work is cut into units (a row, a block of
// elements); each warp takes every n-th unit and its lanes share it:
//
//   for (int row : rows_of_this_warp(rows)) {
//     for (int c : lanes(channels)) ...
//
// On the host a warp has one lane and a launch one warp, so this is a plain loop that g++
// vectorises. There is no block barrier, no shared memory and no atomic operation, so what is
// computed does not depend on the grid.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/types.h"
#include "pipetrain/device/check.h"
#include "pipetrain/error.h"

#ifdef PIPETRAIN_HOST
#include <random>
#endif

namespace pipetrain::kernels {

#ifdef PIPETRAIN_CUDA
constexpr int warp_size = 32;
#else
constexpr int warp_size = PIPETRAIN_WARP_SIZE;  // 1 but in tests
#endif

// ---- loops

// first, first + stride, ... below last. A stride other than 0 is known when compiling.
template <typename Index, int fixed_stride>
struct Strided {
  struct Iterator {
    Index at;
    Index stride;
    __device__ Index operator*() const { return at; }
    __device__ void operator++() { at += fixed_stride != 0 ? Index(fixed_stride) : stride; }
    __device__ bool operator!=(const Iterator& end) const { return at < end.at; }
  };
  Index first;
  Index last;
  Index stride;
  __device__ Iterator begin() const { return {first, stride}; }
  __device__ Iterator end() const { return {last, stride}; }
};

__device__ inline int lane() {
  if constexpr (warp_size == 1) {
    return 0;
  } else {
    return int(threadIdx.x);
  }
}

__device__ inline int warp_index() {
  return int(blockIdx.x * blockDim.y + threadIdx.y);
}
__device__ inline int warp_count() {
  return int(gridDim.x * blockDim.y);
}

// The rows, or other units, of this warp: the same for all its lanes.
__device__ inline Strided<int, 0> rows_of_this_warp(int rows) {
  return {warp_index(), rows, warp_count()};
}

// This lane's part of [0, count), n elements at a time; n divides count.
template <int n = 1>
__device__ Strided<int, n * warp_size> lanes(int count) {
  return {lane() * n, count, 0};
}

// This thread's part of [0, count) over the whole launch, n elements at a time; n divides count.
template <int n = 1>
__device__ auto elements(size_t count) {
  if constexpr (warp_size == 1) {
    return Strided<size_t, n>{0, count, 0};
  } else {
    const size_t thread = size_t(warp_index()) * warp_size + lane();
    return Strided<size_t, 0>{thread * n, count, size_t(warp_count()) * warp_size * n};
  }
}

// ---- reductions over a warp; every lane gets the result

template <typename A>
__device__ A warp_sum(A value) {
  for (int offset = warp_size / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  return value;
}

template <typename A>
__device__ A warp_max(A value) {
  for (int offset = warp_size / 2; offset > 0; offset /= 2) {
    const A other = __shfl_xor_sync(0xffffffffu, value, offset);
    value = other > value ? other : value;
  }
  return value;
}

// A number as an integer of the same order, NaN being the greatest: g++ vectorises a maximum over
// integers but not one over floats. The map is its own inverse.
__device__ inline int32_t flip_negative(int32_t bits) {
  return bits ^ ((bits >> 31) & 0x7fffffff);
}
__device__ inline int64_t flip_negative(int64_t bits) {
  return bits ^ ((bits >> 63) & 0x7fffffffffffffff);
}
__device__ inline int32_t ordered(float x) {
  return flip_negative(std::bit_cast<int32_t>(x));
}
__device__ inline int64_t ordered(double x) {
  return flip_negative(std::bit_cast<int64_t>(x));
}
__device__ inline float from_ordered(int32_t x) {
  return std::bit_cast<float>(flip_negative(x));
}
__device__ inline double from_ordered(int64_t x) {
  return std::bit_cast<double>(flip_negative(x));
}

// ---- several elements at a time: 16 bytes on a GPU, one element on the host

template <typename T>
constexpr int pack_size = warp_size == 1 ? 1 : 16 / int(sizeof(T));

template <typename T, int n>
struct alignas(std::min<size_t>(16, n * sizeof(T))) Pack {
  T values[n];
  __device__ T& operator[](int i) { return values[i]; }
  __device__ const T& operator[](int i) const { return values[i]; }
};

// p is aligned like the pack.
template <int n, typename T>
__device__ Pack<T, n> load(const T* p) {
  if constexpr (n == 1) {
    return {{*p}};
  } else {
    return *reinterpret_cast<const Pack<T, n>*>(p);
  }
}

template <typename T, int n>
__device__ void store(T* p, const Pack<T, n>& pack) {
  if constexpr (n == 1) {
    *p = pack[0];
  } else {
    *reinterpret_cast<Pack<T, n>*>(p) = pack;
  }
}

// ---- launches

template <typename Integer>
constexpr Integer divide_up(Integer a, Integer b) {
  return (a + b - 1) / b;
}

// Runs a kernel for work that `units` warps could share. The host has one warp; builds with larger
// warps test that nothing depends on the grid and choose it at random.
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), size_t units, cudaStream_t stream,
            Arguments&&... arguments) {
  if (units == 0) {
    return;
  }
  cudaLaunchConfig_t config{};
  config.stream = stream;
#ifdef PIPETRAIN_CUDA
  constexpr size_t warps_per_block = 8;
  constexpr size_t max_blocks = size_t(1) << 20;
  config.gridDim = unsigned(std::min(divide_up(units, warps_per_block), max_blocks));
  config.blockDim = dim3(warp_size, warps_per_block);
#else
  thread_local std::minstd_rand random;
  config.gridDim = warp_size == 1 ? 1 : unsigned(1 + random() % 4);
  config.blockDim = dim3(warp_size, warp_size == 1 ? 1 : unsigned(1 + random() % 2));
#endif
  check(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...),
        "cudaLaunchKernelEx");
}

// Warps that share n elements, one pack of T per lane.
template <typename T>
size_t warps_for_elements(size_t n) {
  return divide_up(n, size_t(warp_size) * pack_size<T>);
}

// Widths and element counts are multiples of 8, so that rows are read in packs.
inline void check_multiple_of_8(size_t value, const char* what) {
  if (value % 8 != 0) {
    throw InternalError(std::string(what) + " is " + std::to_string(value) +
                        "; kernels need a multiple of 8");
  }
}

}  // namespace pipetrain::kernels
