// The gradient of a bias, and GELU in its tanh form (Hendrycks and Gimpel 2016):
// gelu(x) = x/2 * (1 + tanh(u)), u = sqrt(2/pi) * (x + 0.044715 * x^3).

#include "kernels/bias_gelu.h"
#include "kernels/column_sums.h"
#include "kernels/math.h"
#include "kernels/parallel.h"

namespace pipetrain::kernels {
namespace {

template <typename A>
constexpr A sqrt_2_over_pi = A(0.79788456080286535588);
template <typename A>
constexpr A cubic = A(0.044715);

// ---- kernels

template <typename T>
struct BiasTerms {
  const T* dy;
  int channels;

  __device__ void add(acc_t<T> (&sums)[1][lane_columns], int row, int column, int count) const {
    constexpr int size = pack_size<T>;
    const T* dy_row = dy + size_t(row) * channels + column;
    for (int i = 0; i < count; i += size) {
      const auto dy_pack = load<size>(dy_row + i);
      for (int j = 0; j < size; ++j) {
        sums[0][i + j] += acc_t<T>(dy_pack[j]);
      }
    }
  }
};

template <typename T>
__global__ void gelu_forward_kernel(T* y, const T* x, size_t n) {
  using A = acc_t<T>;
  constexpr int size = pack_size<T>;
#pragma GCC ivdep
  for (size_t i : elements<size>(n)) {
    const auto x_pack = load<size>(x + i);
    Pack<T, size> y_pack;
    for (int j = 0; j < size; ++j) {
      const A value = A(x_pack[j]);
      const A u = sqrt_2_over_pi<A> * value * (1 + cubic<A> * value * value);
      y_pack[j] = T(A(0.5) * value * (1 + hyperbolic_tangent(u)));
    }
    store(y + i, y_pack);
  }
}

// gelu'(x) = (1 + tanh(u)) / 2 + x/2 * (1 - tanh(u)^2) * u'.
template <typename T>
__global__ void gelu_backward_kernel(T* dx, const T* dy, const T* x, size_t n) {
  using A = acc_t<T>;
  constexpr int size = pack_size<T>;
#pragma GCC ivdep
  for (size_t i : elements<size>(n)) {
    const auto x_pack = load<size>(x + i);
    const auto dy_pack = load<size>(dy + i);
    Pack<T, size> dx_pack;
    for (int j = 0; j < size; ++j) {
      const A value = A(x_pack[j]);
      const A square = cubic<A> * value * value;
      const A tanh_u = hyperbolic_tangent(sqrt_2_over_pi<A> * value * (1 + square));
      const A du = sqrt_2_over_pi<A> * (1 + 3 * square);
      const A slope = A(0.5) * (1 + tanh_u) + A(0.5) * value * (1 - tanh_u * tanh_u) * du;
      dx_pack[j] = T(A(dy_pack[j]) * slope);
    }
    store(dx + i, dx_pack);
  }
}

}  // namespace

// ---- launchers

template <typename T>
void bias_backward(acc_t<T>* dbias, const T* dy, int rows, int channels, acc_t<T>* workspace,
                   cudaStream_t stream) {
  column_sums(Sums<1, acc_t<T>>{{dbias}}, BiasTerms<T>{dy, channels}, rows, channels, workspace,
              stream);
}

template <typename T>
size_t bias_workspace_bytes(int rows, int channels) {
  return column_sums_workspace<1>(rows, channels) * sizeof(acc_t<T>);
}

template <typename T>
void gelu_forward(T* y, const T* x, size_t n, cudaStream_t stream) {
  check_multiple_of_8(n, "the number of elements");
  launch(gelu_forward_kernel<T>, warps_for_elements<T>(n), stream, y, x, n);
}

template <typename T>
void gelu_backward(T* dx, const T* dy, const T* x, size_t n, cudaStream_t stream) {
  check_multiple_of_8(n, "the number of elements");
  launch(gelu_backward_kernel<T>, warps_for_elements<T>(n), stream, dx, dy, x, n);
}

#define INSTANTIATE(T)                                                                 \
  template void bias_backward(acc_t<T>*, const T*, int, int, acc_t<T>*, cudaStream_t); \
  template size_t bias_workspace_bytes<T>(int, int);                                   \
  template void gelu_forward(T*, const T*, size_t, cudaStream_t);                      \
  template void gelu_backward(T*, const T*, const T*, size_t, cudaStream_t);
INSTANTIATE(float)
INSTANTIATE(bf16)
#ifdef PIPETRAIN_HOST
INSTANTIATE(double)
#endif

}  // namespace pipetrain::kernels
