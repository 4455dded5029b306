#include <cuda_runtime.h>
#include <fmt/format.h>

#include <numeric>

#include "emulator/block_threads.h"
#include "emulator/device.h"
#include "emulator/queue.h"

// Launching kernels: checks on the submitting side, the grid's loop on the stream's thread.
namespace emulator {
namespace {

struct Launch {
  dim3 grid, block;
  void (*call)(const void* data);
  alignas(16) std::byte data[kKernelBytes];

  void run() const;
};
static_assert(sizeof(Launch) <= kClosureBytes);

// Each block once, in random order: block i of the order is (offset + i * stride) mod blocks, with
// a stride that has no common factor with the number of blocks.
void Launch::run() const {
  CUstream_st& stream = *CUstream_st::executing();
  const uint64_t blocks = uint64_t(grid.x) * grid.y * grid.z;
  uint64_t offset = 0;
  uint64_t stride = 1;
  if (blocks > 1) {
    offset = stream.random().below(blocks);
    do {
      stride = 1 + stream.random().below(blocks - 1);
    } while (std::gcd(stride, blocks) != 1);
  }
  gridDim = grid;
  blockDim = block;
  threadIdx = {};
  for (uint64_t i = 0; i < blocks; ++i, offset = (offset + stride) % blocks) {
    blockIdx = {unsigned(offset % grid.x), unsigned(offset / grid.x % grid.y),
                unsigned(offset / grid.x / grid.y)};
    if (block.x * block.y == 1) {
      call(data);
    } else {
      stream.block_threads().run(grid, block, blockIdx, call, data);
    }
  }
}

}  // namespace

cudaError_t launch(const cudaLaunchConfig_t& config, int warp_size, const KernelCall& kernel) {
  const dim3 grid = config.gridDim;
  const dim3 block = config.blockDim;
  if (const cudaError_t error = failure(current_device()); error != cudaSuccess) {
    return error;
  }
  if (config.dynamicSmemBytes != 0 || config.numAttrs != 0) {
    return refuse(cudaErrorNotSupported,
                  "cudaLaunchKernelEx: shared memory and attributes are not implemented");
  }
  if (config.stream == nullptr || config.stream->device != current_device()) {
    return refuse(cudaErrorInvalidResourceHandle,
                  "cudaLaunchKernelEx: the stream must be one of the current device, not the "
                  "default stream");
  }
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || block.y == 0 || block.z != 1 ||
      block.x != unsigned(warp_size) || uint64_t(block.x) * block.y > kMaxBlockThreads) {
    return refuse(
        cudaErrorInvalidConfiguration,
        fmt::format("cudaLaunchKernelEx: grid ({}, {}, {}), block ({}, {}, {}): a block is "
                    "(warp size {}, warps, 1) and has at most {} threads",
                    grid.x, grid.y, grid.z, block.x, block.y, block.z, warp_size,
                    kMaxBlockThreads));
  }
  Slot* slot = begin_submit(config.stream);
  auto* operation = new (slot->closure) Launch;
  operation->grid = grid;
  operation->block = block;
  operation->call = kernel.call;
  kernel.copy(operation->data, kernel.data);
  slot->run = [](void* closure) { static_cast<Launch*>(closure)->run(); };
  end_submit(config.stream);
  return cudaSuccess;
}

}  // namespace emulator
