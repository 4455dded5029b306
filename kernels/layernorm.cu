// Layer normalisation over channels (Ba et al. 2016): y = (x - mean) * rstd * weight + bias.

#include <cmath>

#include "kernels/column_sums.h"
#include "kernels/layernorm.h"
#include "kernels/parallel.h"

namespace pipetrain::kernels {
namespace {

// ---- kernels

template <typename T>
__global__ void layernorm_forward_kernel(T* y, acc_t<T>* mean, acc_t<T>* rstd, const T* x,
                                         const acc_t<T>* weight, const acc_t<T>* bias, int rows,
                                         int channels, acc_t<T> epsilon) {
  using A = acc_t<T>;
  constexpr int size = pack_size<T>;
  for (int row : rows_of_this_warp(rows)) {
    const T* x_row = x + size_t(row) * channels;
    T* y_row = y + size_t(row) * channels;

    A sum = 0;
    for (int c : lanes<size>(channels)) {
      const auto x_pack = load<size>(x_row + c);
      for (int j = 0; j < size; ++j) {
        sum += A(x_pack[j]);
      }
    }
    const A row_mean = warp_sum(sum) / A(channels);

    A squares = 0;
    for (int c : lanes<size>(channels)) {
      const auto x_pack = load<size>(x_row + c);
      for (int j = 0; j < size; ++j) {
        const A centred = A(x_pack[j]) - row_mean;
        squares += centred * centred;
      }
    }
    const A row_rstd = A(1) / std::sqrt(warp_sum(squares) / A(channels) + epsilon);

#pragma GCC ivdep
    for (int c : lanes<size>(channels)) {
      const auto x_pack = load<size>(x_row + c);
      const auto weight_pack = load<size>(weight + c);
      const auto bias_pack = load<size>(bias + c);
      Pack<T, size> y_pack;
      for (int j = 0; j < size; ++j) {
        const A normalised = (A(x_pack[j]) - row_mean) * row_rstd;
        y_pack[j] = T(normalised * A(weight_pack[j]) + A(bias_pack[j]));
      }
      store(y_row + c, y_pack);
    }
    if (lane() == 0) {
      mean[row] = row_mean;
      rstd[row] = row_rstd;
    }
  }
}

// With g = dy * weight and n = (x - mean) * rstd: dx = (g - mean(g) - n * mean(g * n)) * rstd.
template <typename T>
__global__ void layernorm_backward_input_kernel(T* dx, const T* dy, const T* x,
                                                const acc_t<T>* mean, const acc_t<T>* rstd,
                                                const acc_t<T>* weight, const T* dresidual,
                                                int rows, int channels) {
  using A = acc_t<T>;
  constexpr int size = pack_size<T>;
  for (int row : rows_of_this_warp(rows)) {
    const size_t start = size_t(row) * channels;
    const A row_mean = mean[row];
    const A row_rstd = rstd[row];

    A sum = 0;
    A sum_normalised = 0;
    for (int c : lanes<size>(channels)) {
      const auto x_pack = load<size>(x + start + c);
      const auto dy_pack = load<size>(dy + start + c);
      const auto weight_pack = load<size>(weight + c);
      for (int j = 0; j < size; ++j) {
        const A g = A(dy_pack[j]) * A(weight_pack[j]);
        sum += g;
        sum_normalised += g * ((A(x_pack[j]) - row_mean) * row_rstd);
      }
    }
    const A g_mean = warp_sum(sum) / A(channels);
    const A gn_mean = warp_sum(sum_normalised) / A(channels);

#pragma GCC ivdep
    for (int c : lanes<size>(channels)) {
      const auto x_pack = load<size>(x + start + c);
      const auto dy_pack = load<size>(dy + start + c);
      const auto weight_pack = load<size>(weight + c);
      Pack<T, size> dx_pack;
      Pack<T, size> residual_pack{};
      if (dresidual != nullptr) {
        residual_pack = load<size>(dresidual + start + c);
      }
      for (int j = 0; j < size; ++j) {
        const A g = A(dy_pack[j]) * A(weight_pack[j]);
        const A normalised = (A(x_pack[j]) - row_mean) * row_rstd;
        const A gradient = (g - g_mean - normalised * gn_mean) * row_rstd;
        dx_pack[j] = T(gradient + A(residual_pack[j]));
      }
      store(dx + start + c, dx_pack);
    }
  }
}

// Terms of dweight and dbias, for column_sums.
template <typename T>
struct LayernormTerms {
  const T* dy;
  const T* x;
  const acc_t<T>* mean;
  const acc_t<T>* rstd;
  int channels;

  __device__ void add(acc_t<T> (&sums)[2][lane_columns], int row, int column, int count) const {
    using A = acc_t<T>;
    constexpr int size = pack_size<T>;
    const size_t start = size_t(row) * channels + column;
    const A row_mean = mean[row];
    const A row_rstd = rstd[row];
    for (int i = 0; i < count; i += size) {
      const auto dy_pack = load<size>(dy + start + i);
      const auto x_pack = load<size>(x + start + i);
      for (int j = 0; j < size; ++j) {
        sums[0][i + j] += A(dy_pack[j]) * ((A(x_pack[j]) - row_mean) * row_rstd);
        sums[1][i + j] += A(dy_pack[j]);
      }
    }
  }
};

}  // namespace

// ---- launchers

template <typename T>
void layernorm_forward(T* y, acc_t<T>* mean, acc_t<T>* rstd, const T* x, const acc_t<T>* weight,
                       const acc_t<T>* bias, int rows, int channels, double epsilon,
                       cudaStream_t stream) {
  check_multiple_of_8(channels, "the number of channels");
  launch(layernorm_forward_kernel<T>, rows, stream, y, mean, rstd, x, weight, bias, rows, channels,
         acc_t<T>(epsilon));
}

template <typename T>
void layernorm_backward_input(T* dx, const T* dy, const T* x, const acc_t<T>* mean,
                              const acc_t<T>* rstd, const acc_t<T>* weight, const T* dresidual,
                              int rows, int channels, cudaStream_t stream) {
  check_multiple_of_8(channels, "the number of channels");
  launch(layernorm_backward_input_kernel<T>, rows, stream, dx, dy, x, mean, rstd, weight, dresidual,
         rows, channels);
}

template <typename T>
void layernorm_backward_weight(acc_t<T>* dweight, acc_t<T>* dbias, const T* dy, const T* x,
                               const acc_t<T>* mean, const acc_t<T>* rstd, int rows, int channels,
                               acc_t<T>* workspace, cudaStream_t stream) {
  column_sums(Sums<2, acc_t<T>>{{dweight, dbias}}, LayernormTerms<T>{dy, x, mean, rstd, channels},
              rows, channels, workspace, stream);
}

template <typename T>
size_t layernorm_workspace_bytes(int rows, int channels) {
  return column_sums_workspace<2>(rows, channels) * sizeof(acc_t<T>);
}

#define INSTANTIATE(T)                                                                             \
  template void layernorm_forward(T*, acc_t<T>*, acc_t<T>*, const T*, const acc_t<T>*,             \
                                  const acc_t<T>*, int, int, double, cudaStream_t);                \
  template void layernorm_backward_input(T*, const T*, const T*, const acc_t<T>*, const acc_t<T>*, \
                                         const acc_t<T>*, const T*, int, int, cudaStream_t);       \
  template void layernorm_backward_weight(acc_t<T>*, acc_t<T>*, const T*, const T*,                \
                                          const acc_t<T>*, const acc_t<T>*, int, int, acc_t<T>*,   \
                                          cudaStream_t);                                           \
  template size_t layernorm_workspace_bytes<T>(int, int);
INSTANTIATE(float)
INSTANTIATE(bf16)
#ifdef PIPETRAIN_HOST
INSTANTIATE(double)
#endif

}  // namespace pipetrain::kernels
