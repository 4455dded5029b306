#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace pipetrain::kernels {

// Keeps the stream busy for `nanoseconds` (at least 0) from the moment its turn comes, and does
// nothing: stands for a kernel of that length. On a GPU one thread waits for the device's clock; on
// the host the stream sleeps, so that ranks that share few cores overlap all the same.
void occupy(int64_t nanoseconds, cudaStream_t stream);

}  // namespace pipetrain::kernels
