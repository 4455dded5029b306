// Token and position embedding: output = wte[token] + wpe[position].

#include <algorithm>

#include "kernels/embedding.h"
#include "kernels/parallel.h"

namespace pipetrain::kernels {
namespace {

// ---- kernels

template <typename T>
__global__ void embedding_forward_kernel(T* output, const int* tokens, const T* wte, const T* wpe,
                                         int rows, int sequence, int channels) {
  using A = acc_t<T>;
  constexpr int size = pack_size<T>;
  for (int row : rows_of_this_warp(rows)) {
    const T* token_row = wte + size_t(tokens[row]) * channels;
    const T* position_row = wpe + size_t(row % sequence) * channels;
    T* output_row = output + size_t(row) * channels;
    for (int c : lanes<size>(channels)) {
      const auto token_pack = load<size>(token_row + c);
      const auto position_pack = load<size>(position_row + c);
      Pack<T, size> sum;
      for (int j = 0; j < size; ++j) {
        sum[j] = T(A(token_pack[j]) + A(position_pack[j]));
      }
      store(output_row + c, sum);
    }
  }
}

// y (channels) += x, by one warp.
template <typename T>
__device__ void add_row(acc_t<T>* y, const T* x, int channels) {
  using A = acc_t<T>;
  constexpr int size = pack_size<T>;
  for (int c : lanes<size>(channels)) {
    auto y_pack = load<size>(y + c);
    const auto x_pack = load<size>(x + c);
    for (int j = 0; j < size; ++j) {
      y_pack[j] += A(x_pack[j]);
    }
    store(y + c, y_pack);
  }
}

// A unit owns a slice of the channels of the tokens of one residue class, looks through all tokens
// and adds the rows of its own in ascending order.
constexpr int residue_classes = warp_size == 1 ? 1 : 32 * warp_size;
constexpr int slice_channels = warp_size == 1 ? 1 << 30 : 256;

template <typename T>
__global__ void wte_backward_kernel(acc_t<T>* dwte, const T* doutput, const int* tokens, int rows,
                                    int channels) {
  const int slices = divide_up(channels, slice_channels);
  for (int unit : rows_of_this_warp(residue_classes * slices)) {
    const int residue = unit / slices;
    const int channel = unit % slices * slice_channels;
    const int left = channels - channel;
    const int width = left < slice_channels ? left : slice_channels;
    for (int first = 0; first < rows; first += warp_size) {
      const int row = first + lane();
      const int token = row < rows ? tokens[row] : -1;
      unsigned owned = __ballot_sync(0xffffffffu, token >= 0 && token % residue_classes == residue);
      for (; owned != 0; owned &= owned - 1) {
        const int offset = std::countr_zero(owned);
        const int owned_row = first + offset;
        const int owned_token = __shfl_sync(0xffffffffu, token, offset);
        add_row(dwte + size_t(owned_token) * channels + channel,
                doutput + size_t(owned_row) * channels + channel, width);
      }
    }
  }
}

template <typename T>
__global__ void wpe_backward_kernel(acc_t<T>* dwpe, const T* doutput, int rows, int sequence,
                                    int channels) {
  for (int position : rows_of_this_warp(std::min(rows, sequence))) {
    for (int row = position; row < rows; row += sequence) {
      add_row(dwpe + size_t(position) * channels, doutput + size_t(row) * channels, channels);
    }
  }
}

}  // namespace

// ---- launchers

template <typename T>
void embedding_forward(T* output, const int* tokens, const T* wte, const T* wpe, int rows,
                       int sequence, int channels, cudaStream_t stream) {
  check_multiple_of_8(channels, "the number of channels");
  launch(embedding_forward_kernel<T>, rows, stream, output, tokens, wte, wpe, rows, sequence,
         channels);
}

template <typename T>
void embedding_backward(acc_t<T>* dwte, acc_t<T>* dwpe, const T* doutput, const int* tokens,
                        int rows, int sequence, int channels, cudaStream_t stream) {
  check_multiple_of_8(channels, "the number of channels");
  launch(wte_backward_kernel<T>, size_t(residue_classes) * divide_up(channels, slice_channels),
         stream, dwte, doutput, tokens, rows, channels);
  launch(wpe_backward_kernel<T>, std::min(rows, sequence), stream, dwpe, doutput, rows, sequence,
         channels);
}

#define INSTANTIATE(T)                                                                        \
  template void embedding_forward(T*, const int*, const T*, const T*, int, int, int,          \
                                  cudaStream_t);                                              \
  template void embedding_backward(acc_t<T>*, acc_t<T>*, const T*, const int*, int, int, int, \
                                   cudaStream_t);
INSTANTIATE(float)
INSTANTIATE(bf16)
#ifdef PIPETRAIN_HOST
INSTANTIATE(double)
#endif

}  // namespace pipetrain::kernels
