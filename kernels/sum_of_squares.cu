// Sums of squares per block of a gradient, from which its norm is taken.

#include "kernels/parallel.h"
#include "kernels/sum_of_squares.h"

namespace pipetrain::kernels {
namespace {

// ---- kernels

template <typename A>
__global__ void sum_of_squares_kernel(A* block_sums, const A* gradient, size_t n, int blocks) {
  constexpr int size = pack_size<A>;
  for (int block : rows_of_this_warp(blocks)) {
    const A* block_gradient = gradient + block * norm_block;
    const size_t left = n - block * norm_block;
    const int count = int(left < norm_block ? left : norm_block);
    A sum = 0;
    for (int i : lanes<size>(count)) {
      const auto pack = load<size>(block_gradient + i);
      for (int j = 0; j < size; ++j) {
        sum += pack[j] * pack[j];
      }
    }
    sum = warp_sum(sum);
    if (lane() == 0) {
      block_sums[block] = sum;
    }
  }
}

}  // namespace

// ---- launchers

template <typename A>
void sum_of_squares(A* block_sums, const A* gradient, size_t n, cudaStream_t stream) {
  check_multiple_of_8(n, "the number of elements");
  launch(sum_of_squares_kernel<A>, norm_blocks(n), stream, block_sums, gradient, n,
         int(norm_blocks(n)));
}

template void sum_of_squares(float*, const float*, size_t, cudaStream_t);
#ifdef PIPETRAIN_HOST
template void sum_of_squares(double*, const double*, size_t, cudaStream_t);
#endif

}  // namespace pipetrain::kernels
