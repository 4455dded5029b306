#pragma once

#include "kernels/parallel.h"

namespace pipetrain::kernels {

// Sums over the rows of a matrix, in an order that depends on its shape alone: first over chunks of
// rows, then over the chunks. A warp sums block_columns columns, each lane lane_columns of them,
// side by side.
constexpr int chunk_rows = 32;
constexpr int block_columns = 256;
constexpr int lane_columns = block_columns / warp_size;

// How many of its columns a lane has in a matrix, from `column` on. Where it is one pack, it is all
// or none, and the sums stay in registers.
__device__ inline int columns_of_lane(int columns, int column) {
  if (column >= columns) {
    return 0;
  }
  return lane_columns == 8 || columns - column > lane_columns ? lane_columns : columns - column;
}

template <int outputs, typename A>
struct Sums {
  A* of[outputs];
};

// partial (outputs, chunks, columns) = sums over each chunk. terms.add adds the terms of one row in
// columns [column, column + count) to sums.
template <int outputs, typename A, typename Terms>
__global__ void chunk_sums_kernel(A* partial, Terms terms, int rows, int columns) {
  const int chunks = divide_up(rows, chunk_rows);
  const int blocks = divide_up(columns, block_columns);
  for (int unit : rows_of_this_warp(chunks * blocks)) {
    const int chunk = unit / blocks;
    const int column = unit % blocks * block_columns + lane() * lane_columns;
    const int count = columns_of_lane(columns, column);
    const int last_row = std::min(rows, (chunk + 1) * chunk_rows);
    A sums[outputs][lane_columns] = {};
    for (int row = chunk * chunk_rows; row < last_row; ++row) {
      terms.add(sums, row, column, count);
    }
    for (int output = 0; output < outputs; ++output) {
      A* chunk_partial = partial + (size_t(output) * chunks + chunk) * columns + column;
      for (int i = 0; i < count; ++i) {
        chunk_partial[i] = sums[output][i];
      }
    }
  }
}

// sums (columns each) += sums of partial over the chunks.
template <int outputs, typename A>
__global__ void fold_chunks_kernel(Sums<outputs, A> result, const A* partial, int chunks,
                                   int columns) {
  const int blocks = divide_up(columns, block_columns);
  for (int unit : rows_of_this_warp(outputs * blocks)) {
    const int output = unit / blocks;
    const int column = unit % blocks * block_columns + lane() * lane_columns;
    const int count = columns_of_lane(columns, column);
    A sums[lane_columns] = {};
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const A* chunk_partial = partial + (size_t(output) * chunks + chunk) * columns + column;
      for (int i = 0; i < count; ++i) {
        sums[i] += chunk_partial[i];
      }
    }
    A* result_columns = result.of[output] + column;
    for (int i = 0; i < count; ++i) {
      result_columns[i] += sums[i];
    }
  }
}

// Elements of workspace that column_sums needs.
template <int outputs>
size_t column_sums_workspace(int rows, int columns) {
  return size_t(outputs) * divide_up(rows, chunk_rows) * columns;
}

// Adds the column sums of the terms to the results. columns is a multiple of 8.
template <int outputs, typename A, typename Terms>
void column_sums(const Sums<outputs, A>& results, const Terms& terms, int rows, int columns,
                 A* workspace, cudaStream_t stream) {
  check_multiple_of_8(columns, "the number of columns");
  const int chunks = divide_up(rows, chunk_rows);
  const int blocks = divide_up(columns, block_columns);
  launch(chunk_sums_kernel<outputs, A, Terms>, size_t(chunks) * blocks, stream, workspace, terms,
         rows, columns);
  launch(fold_chunks_kernel<outputs, A>, size_t(outputs) * blocks, stream, results, workspace,
         chunks, columns);
}

}  // namespace pipetrain::kernels
