#ifdef PIPETRAIN_HOST

// Four lanes per warp, each a thread, whatever the other files are built with.
#undef PIPETRAIN_WARP_SIZE
#define PIPETRAIN_WARP_SIZE 4

#include <cuda_runtime.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "tests/emulator/strict_fixture.h"

namespace pipetrain::test {
namespace {

constexpr unsigned all = 0xffffffff;

class StrictKernel : public Strict {
 protected:
  template <class... Parameters, class... Arguments>
  cudaError_t launch(dim3 grid, dim3 block, cudaStream_t stream, void (*kernel)(Parameters...),
                     Arguments... arguments) {
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = block;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel, arguments...);
  }
};

// sums[row] = sum of x (rows, columns) over the columns, a warp per row.
__global__ void row_sums(int* sums, const int* x, int rows, int columns) {
  const unsigned warps = gridDim.x * blockDim.y;
  for (int row = int(blockIdx.x * blockDim.y + threadIdx.y); row < rows; row += int(warps)) {
    int sum = 0;
    for (int c = int(threadIdx.x); c < columns; c += warpSize) {
      sum += x[row * columns + c];
    }
    for (int offset = warpSize / 2; offset > 0; offset /= 2) {
      sum += __shfl_xor_sync(all, sum, offset);
    }
    if (threadIdx.x == 0) {
      sums[row] = sum;
    }
  }
}

TEST_F(StrictKernel, WarpSumsAreRightOnRandomGrids) {
  constexpr int rows = 37;
  constexpr int columns = 13;
  int* x = pinned_memory<int>(rows * columns);
  int* sums = pinned_memory<int>(rows);
  std::iota(x, x + rows * columns, 0);
  cudaStream_t stream = new_stream();
  std::minstd_rand random(5);
  for (int repeat = 0; repeat < 10; ++repeat) {
    std::fill_n(sums, rows, -1);
    const dim3 grid(1 + unsigned(random() % 4));
    const dim3 block(warpSize, 1 + unsigned(random() % 3));
    ok(launch(grid, block, stream, row_sums, sums, x, rows, columns));
    ok(cudaStreamSynchronize(stream));
    for (int row = 0; row < rows; ++row) {
      ASSERT_EQ(sums[row], std::accumulate(x + row * columns, x + (row + 1) * columns, 0));
    }
  }
}

// Each lane writes what it gets from another lane, in several types, and a ballot.
__global__ void talk(double* rotated, float* first, unsigned* votes) {
  const int lane = int(threadIdx.x);
  for (int round = 0; round < 50; ++round) {
    rotated[lane] = __shfl_sync(all, lane + 0.25 * round, (lane + round) % warpSize);
    first[lane] = __shfl_sync(all, float(lane * 2 + round), 0);
    votes[lane] = __ballot_sync(all, lane % 2 == round % 2);
  }
}

TEST_F(StrictKernel, ShufflesAndVotesCarryTheValuesOfTheirOwnRound) {
  double* rotated = pinned_memory<double>(4);
  float* first = pinned_memory<float>(4);
  unsigned* votes = pinned_memory<unsigned>(4);
  cudaStream_t stream = new_stream();
  ok(launch(1, dim3(4), stream, talk, rotated, first, votes));
  ok(cudaStreamSynchronize(stream));
  for (int lane = 0; lane < 4; ++lane) {
    EXPECT_EQ(rotated[lane], (lane + 49) % 4 + 0.25 * 49);
    EXPECT_EQ(first[lane], 49);
    EXPECT_EQ(votes[lane], 0b1010u);
  }
}

// Neighbours exchange through memory: every lane writes its cell, then reads the next one's.
__global__ void exchange_through_memory(int* cells, int* result, int rounds, bool synchronise) {
  const int lane = int(threadIdx.x);
  for (int round = 0; round < rounds; ++round) {
    cells[lane] = round * warpSize + lane;
    __shfl_xor_sync(all, 0, 1);  // lets all lanes arrive, but orders no memory
    if (synchronise) {
      __syncwarp();
    }
    result[lane] = cells[(lane + 1) % warpSize];
    __syncwarp();
  }
}

TEST_F(StrictKernel, ASynchronisedWarpSeesItsNeighboursWrites) {
  int* cells = pinned_memory<int>(4);
  int* result = pinned_memory<int>(4);
  cudaStream_t stream = new_stream();
  ok(launch(1, dim3(4), stream, exchange_through_memory, cells, result, 20, true));
  ok(cudaStreamSynchronize(stream));
  for (int lane = 0; lane < 4; ++lane) {
    EXPECT_EQ(result[lane], 19 * 4 + (lane + 1) % 4);
  }
}

// Run by strict_race_test.cpp under ThreadSanitizer, which must report it.
TEST_F(StrictKernel, DISABLED_AWarpThatIsNotSynchronised) {
  int* cells = pinned_memory<int>(4);
  int* result = pinned_memory<int>(4);
  cudaStream_t stream = new_stream();
  ok(launch(1, dim3(4), stream, exchange_through_memory, cells, result, 20, false));
  ok(cudaStreamSynchronize(stream));
}

__global__ void note_block(unsigned* order, unsigned* count) {
  if (threadIdx.x == 0) {
    order[(*count)++] = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  }
}

TEST_F(StrictKernel, EveryBlockRunsOnceInRandomOrder) {
  const dim3 grid(5, 3, 2);
  unsigned* order = pinned_memory<unsigned>(30);
  unsigned* count = pinned_memory<unsigned>(1);
  cudaStream_t stream = new_stream();
  std::set<std::vector<unsigned>> orders;
  for (int repeat = 0; repeat < 10; ++repeat) {
    *count = 0;
    ok(launch(grid, dim3(4), stream, note_block, order, count));
    ok(cudaStreamSynchronize(stream));
    ASSERT_EQ(*count, 30u);
    orders.emplace(order, order + 30);
    std::sort(order, order + 30);
    for (unsigned i = 0; i < 30; ++i) {
      ASSERT_EQ(order[i], i);
    }
  }
  EXPECT_GT(orders.size(), 3u);
}

struct Pair {
  int a, b;
};
__global__ void store_arguments(Pair* out, Pair value, float x, const int* nothing) {
  if (threadIdx.x == 0) {
    *out = {value.a + int(x), nothing == nullptr ? value.b : 0};
  }
}

TEST_F(StrictKernel, ArgumentsAreCopiedAtTheLaunchAndConverted) {
  Pair* out = pinned_memory<Pair>(1);
  cudaStream_t stream = new_stream();
  Gate gate(stream);
  Pair value = {1, 2};
  ok(launch(1, dim3(4), stream, store_arguments, out, value, 3, nullptr));
  value = {100, 200};
  gate.open();
  ok(cudaStreamSynchronize(stream));
  EXPECT_EQ(out->a, 4);
  EXPECT_EQ(out->b, 2);
}

__global__ void leave_early() {
  if (threadIdx.x != 3) {
    __syncwarp();
  }
}
__global__ void diverge() {
  if (threadIdx.x < 2) {
    __syncwarp();
  } else {
    __shfl_sync(all, 1, 0);
  }
}
__global__ void read_outside() {
  __shfl_xor_sync(all, 1, 4);
}
__global__ void use_part_of_a_warp() {
  __syncwarp(0xf);
}

TEST_F(StrictKernel, WarpFunctionsThatNotAllLanesCallAlikeFail) {
  cudaStream_t stream = new_stream();
  for (void (*kernel)() : {leave_early, diverge, read_outside, use_part_of_a_warp}) {
    ok(launch(1, dim3(4), stream, kernel));
    EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
    EXPECT_EQ(launch(1, dim3(4), stream, kernel), cudaErrorLaunchFailure);
    emulator::clear_failure(0);
  }
}

__global__ void nothing() {}

TEST_F(StrictKernel, LaunchesThatAreNotImplementedAreRefused) {
  cudaStream_t stream = new_stream();
  for (dim3 block : {dim3(1), dim3(32), dim3(4, 17), dim3(4, 1, 2), dim3(4, 0)}) {
    expect_refused(launch(1, block, stream, nothing), cudaErrorInvalidConfiguration);
  }
  expect_refused(launch(0, dim3(4), stream, nothing), cudaErrorInvalidConfiguration);
  expect_refused(launch(1, dim3(4), nullptr, nothing), cudaErrorInvalidResourceHandle);
  cudaLaunchConfig_t config{};
  config.blockDim = dim3(4);
  config.stream = stream;
  config.dynamicSmemBytes = 16;
  expect_refused(cudaLaunchKernelEx(&config, nothing), cudaErrorNotSupported);
  config.dynamicSmemBytes = 0;
  config.numAttrs = 1;
  expect_refused(cudaLaunchKernelEx(&config, nothing), cudaErrorNotSupported);
  ok(cudaSetDevice(1));
  expect_refused(launch(1, dim3(4), stream, nothing), cudaErrorInvalidResourceHandle);
  ok(cudaSetDevice(0));
}

}  // namespace
}  // namespace pipetrain::test

#endif
