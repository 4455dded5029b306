#pragma once

#include <cstddef>

#include "kernels/types.h"

namespace pipetrain::kernels {

// Squares are summed per block of this many elements of a tensor; shards of a tensor are cut at
// block boundaries, so a norm does not depend on how tensors are spread over ranks.
constexpr size_t norm_block = 4096;
constexpr size_t norm_blocks(size_t n) {
  return (n + norm_block - 1) / norm_block;
}

// block_sums (norm_blocks(n)) = sum of squares of each block of gradient (n). Accumulator types.
template <typename A>
void sum_of_squares(A* block_sums, const A* gradient, size_t n, cudaStream_t stream);

}  // namespace pipetrain::kernels
