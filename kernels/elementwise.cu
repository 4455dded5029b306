// Additions and conversions, element by element.

#include "kernels/elementwise.h"
#include "kernels/parallel.h"

namespace pipetrain::kernels {
namespace {

// ---- kernels

template <typename T>
__global__ void residual_add_kernel(T* output, const T* a, const T* b, size_t n) {
  constexpr int size = pack_size<T>;
#pragma GCC ivdep
  for (size_t i : elements<size>(n)) {
    const auto a_pack = load<size>(a + i);
    const auto b_pack = load<size>(b + i);
    Pack<T, size> sum;
    for (int j = 0; j < size; ++j) {
      sum[j] = T(acc_t<T>(a_pack[j]) + acc_t<T>(b_pack[j]));
    }
    store(output + i, sum);
  }
}

template <typename T>
__global__ void convert_kernel(T* y, const acc_t<T>* x, size_t n) {
  constexpr int size = pack_size<T>;
  for (size_t i : elements<size>(n)) {
    const auto x_pack = load<size>(x + i);
    Pack<T, size> y_pack;
    for (int j = 0; j < size; ++j) {
      y_pack[j] = T(x_pack[j]);
    }
    store(y + i, y_pack);
  }
}

}  // namespace

// ---- launchers

template <typename T>
void residual_add(T* output, const T* a, const T* b, size_t n, cudaStream_t stream) {
  check_multiple_of_8(n, "the number of elements");
  launch(residual_add_kernel<T>, warps_for_elements<T>(n), stream, output, a, b, n);
}

template <typename A>
void add(A* y, const A* x, size_t n, cudaStream_t stream) {
  residual_add(y, y, x, n, stream);
}

template <typename T>
void convert(T* y, const acc_t<T>* x, size_t n, cudaStream_t stream) {
  check_multiple_of_8(n, "the number of elements");
  launch(convert_kernel<T>, warps_for_elements<T>(n), stream, y, x, n);
}

void zero(void* data, size_t bytes, cudaStream_t stream) {
  check(cudaMemsetAsync(data, 0, bytes, stream), "cudaMemsetAsync");
}

template void residual_add(float*, const float*, const float*, size_t, cudaStream_t);
template void residual_add(bf16*, const bf16*, const bf16*, size_t, cudaStream_t);
template void add(float*, const float*, size_t, cudaStream_t);
template void convert(float*, const float*, size_t, cudaStream_t);
template void convert(bf16*, const float*, size_t, cudaStream_t);
#ifdef PIPETRAIN_HOST
template void residual_add(double*, const double*, const double*, size_t, cudaStream_t);
template void add(double*, const double*, size_t, cudaStream_t);
template void convert(double*, const double*, size_t, cudaStream_t);
#endif

}  // namespace pipetrain::kernels
